"""Compares pushed records with those that a dataset holds under the same ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlalchemy.orm import Session

from app.registry.datasets import repository
from app.registry.datasets.cells import equal_rows
from app.registry.datasets.repository import HeldRecord
from app.registry.datasets.shards import unpack
from app.registry.datasets.tables import ShardRow
from app.registry.datasets.uploads import Upload
from app.storage.blobs import Blobs

_ROWS_AT_ONCE = 8192
"""Lists as bytes take many times the memory of the table."""


@dataclass(frozen=True)
class KeyedUpload:
    """An upload with the pseudonyms of its ids, by row."""

    upload: Upload
    record_keys: Sequence[bytes]
    subject_keys: Sequence[bytes | None]

    def rows(self, rows: Sequence[int]) -> "KeyedUpload":
        """Return some of its rows."""
        return KeyedUpload(
            self.upload.rows(rows),
            [self.record_keys[row] for row in rows],
            [self.subject_keys[row] for row in rows],
        )


@dataclass(frozen=True)
class Comparison:
    """The rows of an upload, by what the dataset knows of their ids.

    Attributes:
        new: the id is new; of rows with the same new id, the first.
        equal: the dataset holds the same record.
        changed: it holds a record with this id and another subject or other values.
        forgotten: the record was forgotten and must not come back.
    """

    new: Sequence[int]
    equal: Sequence[int]
    changed: Sequence[int]
    forgotten: Sequence[int]


def compare(session: Session, blobs: Blobs, dataset_id: str, pushed: KeyedUpload) -> Comparison:
    """Compare an upload with the dataset as it is now.

    Raises:
        GoneError: a shard was rewritten meanwhile; compare again.
    """
    held = repository.held_records(session, dataset_id, pushed.record_keys)
    new, forgotten = [], []
    first: dict[bytes, int] = {}
    repeated: list[tuple[int, int]] = []
    by_shard: dict[str, list[tuple[int, HeldRecord]]] = {}
    for row, key in enumerate(pushed.record_keys):
        record = held.get(key)
        if record is None:
            if first.setdefault(key, row) == row:
                new.append(row)
            else:
                repeated.append((row, first[key]))
        elif record.forgotten_epoch is not None or record.shard_id is None:
            forgotten.append(row)
        else:
            by_shard.setdefault(record.shard_id, []).append((row, record))
    equal: list[int] = []
    changed: list[int] = []
    for shard_id, pairs in by_shard.items():
        content = blobs.read(session.get_one(ShardRow, shard_id).blob_id)
        for (row, _), same in zip(pairs, _sameness(content, pairs, pushed), strict=True):
            (equal if same else changed).append(row)
    for row, before in repeated:
        (equal if _repeats(pushed, row, before) else changed).append(row)
    return Comparison(new, sorted(equal), sorted(changed), forgotten)


def _sameness(
    content: bytes, pairs: Sequence[tuple[int, HeldRecord]], pushed: KeyedUpload
) -> Iterator[bool]:
    """Yield for each pair whether the pushed row is as the shard has it."""
    seqs, held = unpack(content)
    order = np.argsort(seqs)
    wanted = np.array([record.seq for _, record in pairs], dtype=np.int64)
    places: npt.NDArray[np.int64] = order[np.searchsorted(seqs, wanted, sorter=order)]
    for begin in range(0, len(pairs), _ROWS_AT_ONCE):
        few = pairs[begin : begin + _ROWS_AT_ONCE]
        rows = pa.array([row for row, _ in few], pa.int64())
        same = equal_rows(
            held.take(pa.array(places[begin : begin + _ROWS_AT_ONCE])),
            pushed.upload.content.take(rows),
        )
        for (row, record), equal in zip(few, same.tolist(), strict=True):
            yield record.subject_key == pushed.subject_keys[row] and equal


def _repeats(pushed: KeyedUpload, row: int, before: int) -> bool:
    """Return whether a row is as an earlier one of the same upload."""
    content = pushed.upload.content
    same = bool(equal_rows(content.slice(row, 1), content.slice(before, 1))[0])
    return same and pushed.subject_keys[row] == pushed.subject_keys[before]
