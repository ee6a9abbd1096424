"""Records of a shard as a task reads them, in memory and in a cached object."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.registry.datasets.shards import pack, unpack

Wanted = NDArray[np.int64] | None
"""The numbers of the records that are wanted, ascending; None means all."""
Decode = Callable[[bytes, Wanted], "Part"]
"""Makes tensors of the wanted records of a stored shard."""


_SHAPE = b"shape"


@dataclass(frozen=True, eq=False)
class Part:
    """Some records of a dataset.

    Attributes:
        seqs: int64 [n].
        tensors: by name, each [n, …]; row i is of record i alone.
    """

    seqs: NDArray[np.int64]
    tensors: Mapping[str, NDArray[Any]] = field(repr=False)

    def only(self, wanted: Wanted) -> "Part":
        """Return a copy of the records that are wanted; itself if all are."""
        return self if wanted is None else self.rows(places_of(self.seqs, wanted)[0])

    def rows(self, places: NDArray[np.int64]) -> "Part":
        """Return a copy of the records at these places."""
        return Part(self.seqs[places], {name: each[places] for name, each in self.tensors.items()})

    def to_bytes(self) -> bytes:
        """Return a shard, whose rows an erasure can take away; ``of_bytes`` restores it."""
        columns = {name: _column(values) for name, values in self.tensors.items()}
        shapes = {name: str(values.shape[1:]) for name, values in self.tensors.items()}
        schema = pa.schema(
            [
                pa.field(name, column.type, metadata={_SHAPE: shapes[name]})
                for name, column in columns.items()
            ]
        )
        return pack(self.seqs, pa.table(list(columns.values()), schema=schema))

    @classmethod
    def of_bytes(cls, content: bytes) -> "Part":
        """Return what ``to_bytes`` wrote."""
        seqs, rows = unpack(content)
        return cls(seqs, {field.name: _values(rows, field) for field in rows.schema})


def in_order(groups: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the sequence numbers of several groups of records, ascending, int64 [n]."""
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *groups]))


def places_of(
    seqs: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of ``seqs`` that are wanted, and the place of each in ``wanted``, ascending.

    Both are int64 [k].
    """
    if not len(wanted):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    places = np.searchsorted(wanted, seqs).clip(max=len(wanted) - 1)
    rows = np.flatnonzero(wanted[places] == seqs)
    return rows, places[rows]


def _column(values: NDArray[Any]) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    width = int(np.prod(values.shape[1:]))
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


def _values(rows: pa.Table, described: pa.Field) -> NDArray[Any]:
    column = rows[described.name].combine_chunks()
    text = described.metadata[_SHAPE].decode().strip("(),")
    shape = tuple(int(side) for side in text.split(",") if side.strip())
    if not shape:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(column.flatten().to_numpy().reshape(-1, *shape))
