"""The stored sums of a ridge head's records, from which forgotten ones can be subtracted.

Beside the sums it names the records that are in them, each with a digest of what was added, so that
nothing else is ever subtracted. The content is a safetensors file of whole numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from app.domain.errors import CorruptObjectError

KIND = "statistics"
_SEQS, _DIGESTS = "seqs", "digests"


@dataclass(frozen=True, eq=False)
class StatisticsFile:
    """A file's content.

    Attributes:
        seqs: int64 [n], the records in the sums, ascending.
        digests: uint64 [n], of each record's integers.
        sums: int64 arrays by name.
    """

    seqs: NDArray[np.int64]
    digests: NDArray[np.uint64]
    sums: Mapping[str, NDArray[np.int64]]

    def without(self, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records in the sums that are not among these, ascending."""
        return self.seqs[np.isin(self.seqs, seqs, invert=True)]

    def to_bytes(self) -> bytes:
        """Return the file."""
        return safetensors.numpy.save(
            {_SEQS: self.seqs, _DIGESTS: self.digests, **self.sums},
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> "StatisticsFile":
        """Read what ``to_bytes`` wrote; ``CorruptObjectError`` if it is something else."""
        try:
            arrays = safetensors.numpy.load(content)
            return cls(arrays.pop(_SEQS), arrays.pop(_DIGESTS), arrays)
        except (SafetensorError, KeyError) as error:
            raise CorruptObjectError("not a file of statistics") from error


def size_of(records: int, *, features: int, outputs: int) -> int:
    """Return how many bytes the sums over so many records take, without the file's header."""
    sums = 1 + features + features**2 + 2 * outputs + features * outputs
    return 8 * (sums + 2 * records)
