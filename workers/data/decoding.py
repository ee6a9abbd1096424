"""What makes a task's tensors of a stored shard of columns."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InvalidRecordsError, RunFailedError
from app.registry.datasets.shards import unpack
from workers.seal.write_guard import encoding
from workers.training.part import Decode, Part
from workers.training.tasks.catalogue import Encoder

_MOST_SHOWN: Final = 20


def columns_by(encoder: Encoder) -> Decode:
    """Return what decodes shards of a dataset of columns.

    It raises ``RunFailedError`` for records that cannot be encoded, and names them by number, and
    ``WriteRefusedError`` where encoding would leave anything outside of memory.
    """

    def decode(content: bytes) -> Part:
        seqs, rows = unpack(content)
        try:
            with encoding():
                return Part(seqs, encoder(rows))
        except InvalidRecordsError as error:
            said = _in_words(error, seqs)
        raise RunFailedError(said)

    return decode


def _in_words(error: InvalidRecordsError, seqs: NDArray[np.int64]) -> str:
    """Return which records cannot be encoded; the service knows them by number alone."""
    lines = []
    for problem in error.problems[:_MOST_SHOWN]:
        record = "all" if problem.row is None else f"record {seqs[problem.row]}"
        lines.append(problem.about(record))
    return (
        f"{error.count} fault(s) in records that the task cannot encode; nothing was trained. "
        "'expunge model check --data FILE' finds their ids in your own file: mend these records, "
        "or have them forgotten.\n" + "\n".join(lines)
    )
