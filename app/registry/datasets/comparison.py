"""Compares pushed records with those that a dataset holds under the same ids.

Two rows have the same values however Arrow lays them out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.orm import Session

from app.domain.errors import GoneError
from app.domain.schema import TableSchema
from app.registry.datasets import repository
from app.registry.datasets.columns.typed import kept_schema
from app.registry.datasets.repository import KeyedRecord
from app.registry.datasets.shards import fitted, unpack
from app.registry.datasets.tables import DatasetRow, ShardRow
from app.registry.datasets.uploads import Upload
from app.storage.blobs import Blobs

_LENGTH_BYTES = 8
_MISSING = b"\xff" * _LENGTH_BYTES
_ROWS_AT_ONCE = 8192
"""Lists as bytes take many times the memory of the table."""


@dataclass(frozen=True)
class KeyedUpload:
    """An upload with the pseudonyms of its ids.

    Attributes:
        upload: n records.
        record_keys: (n, 32).
        subject_keys: (n, 32), of any content where a record has no subject.
        without_target: how many records have none, by the name of a model that has some of these.
    """

    upload: Upload
    record_keys: npt.NDArray[np.uint8]
    subject_keys: npt.NDArray[np.uint8]
    without_target: Mapping[str, int] = field(default_factory=dict)

    def rows(self, rows: Sequence[int]) -> "KeyedUpload":
        """Return some of its rows."""
        places = np.array(rows, dtype=np.int64)
        return KeyedUpload(
            self.upload.rows(rows), self.record_keys[places], self.subject_keys[places]
        )

    @property
    def without_subject(self) -> npt.NDArray[np.bool_]:
        """Which records have no subject, (n,)."""
        found: npt.NDArray[np.bool_] = self.upload.subject_ids.is_null().to_numpy(
            zero_copy_only=False
        )
        return found

    def subject_key(self, row: int) -> bytes | None:
        """Return one record's."""
        is_there = self.upload.subject_ids[row].is_valid
        return self.subject_keys[row].tobytes() if is_there else None


@dataclass(frozen=True)
class Comparison:
    """The rows of an upload, by what the dataset knows of their ids.

    Attributes:
        new: no record of this id is stored, or it is forgotten; of rows with one id, the first.
        equal: the dataset holds the same record.
        changed: it holds a record with this id and another subject or other values.
    """

    new: Sequence[int]
    equal: Sequence[int]
    changed: Sequence[int]


def compare(session: Session, blobs: Blobs, dataset_id: str, pushed: KeyedUpload) -> Comparison:
    """Compare an upload with the dataset as it is now.

    Raises:
        GoneError: a shard was rewritten meanwhile; compare again.
    """
    schema = TableSchema.from_json(session.get_one(DatasetRow, dataset_id).schema)
    columns = kept_schema(schema)
    keys = [key.tobytes() for key in pushed.record_keys]
    held = repository.held_records(session, dataset_id, keys)
    new = []
    first: dict[bytes, int] = {}
    repeated: list[tuple[int, int]] = []
    by_shard: dict[str, list[tuple[int, KeyedRecord]]] = {}
    for row, key in enumerate(keys):
        record = held.get(key)
        if record is None:
            if first.setdefault(key, row) == row:
                new.append(row)
            else:
                repeated.append((row, first[key]))
        else:
            by_shard.setdefault(record.shard_id or "", []).append((row, record))
    equal: list[int] = []
    changed: list[int] = []
    for shard_id, pairs in by_shard.items():
        content = blobs.read(session.get_one(ShardRow, shard_id).blob_id)
        for (row, _), same in zip(pairs, _sameness(content, pairs, pushed, columns), strict=True):
            (equal if same else changed).append(row)
    for row, before in repeated:
        (equal if _repeats(pushed, row, before) else changed).append(row)
    return Comparison(new, sorted(equal), sorted(changed))


def _sameness(
    content: bytes,
    pairs: Sequence[tuple[int, KeyedRecord]],
    pushed: KeyedUpload,
    columns: pa.Schema,
) -> Iterator[bool]:
    """Yield for each pair whether the pushed row is as the shard has it; either may be older."""
    seqs, held = unpack(content, columns)
    order = np.argsort(seqs)
    wanted = np.array([record.seq for _, record in pairs], dtype=np.int64)
    if not np.isin(wanted, seqs).all():
        raise GoneError("a shard was rewritten meanwhile")
    places: npt.NDArray[np.int64] = order[np.searchsorted(seqs, wanted, sorter=order)]
    for begin in range(0, len(pairs), _ROWS_AT_ONCE):
        few = pairs[begin : begin + _ROWS_AT_ONCE]
        rows = pa.array([row for row, _ in few], pa.int64())
        same = equal_rows(
            held.take(pa.array(places[begin : begin + _ROWS_AT_ONCE])),
            fitted(pushed.upload.content.take(rows), columns, len(rows)),
        )
        for (row, record), equal in zip(few, same.tolist(), strict=True):
            yield record.subject_key == pushed.subject_key(row) and equal


def _repeats(pushed: KeyedUpload, row: int, before: int) -> bool:
    """Return whether a row is as an earlier one of the same upload."""
    content = pushed.upload.content
    same = bool(equal_rows(content.slice(row, 1), content.slice(before, 1))[0])
    return same and pushed.subject_key(row) == pushed.subject_key(before)


def equal_rows(one: pa.Table, other: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each of n rows whether it is equal in two tables of one schema, (n,)."""
    same = np.ones(len(one), dtype=np.bool_)
    bytewise = []
    for name in one.column_names:
        kind = one.schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_float16(kind):  # Arrow compares neither
            bytewise.append(name)
            continue
        here, there = one[name], other[name]
        equal = pc.fill_null(pc.equal(here, there), fill_value=False)
        absent = pc.and_(pc.is_null(here), pc.is_null(there))
        same &= pc.or_(equal, absent).to_numpy()
    if bytewise:
        pairs = zip(
            rows_as_bytes(one.select(bytewise)), rows_as_bytes(other.select(bytewise)), strict=True
        )
        same &= np.fromiter((here == there for here, there in pairs), np.bool_, len(one))
    return same


def rows_as_bytes(table: pa.Table) -> Iterator[bytes]:
    """Yield each row's bytes: for each cell in order its length and its bytes, or no value."""
    columns = [_cells(column.combine_chunks()) for column in table.columns]
    return map(b"".join, zip(*columns, strict=True))


def _framed(cell: bytes | None) -> bytes:
    return _MISSING if cell is None else len(cell).to_bytes(_LENGTH_BYTES, "big") + cell


def _cells(column: pa.ChunkedArray | pa.Array) -> list[bytes]:
    if isinstance(column, pa.ChunkedArray):  # it is too long for one array
        return [cell for chunk in column.chunks for cell in _cells(chunk)]
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return [_framed(cell) for cell in column.cast(pa.binary()).to_pylist()]
    if pa.types.is_fixed_size_list(kind):
        present = _numbers(pc.list_flatten(column), kind.list_size)
        return _with_missing(present, column)
    if pa.types.is_list(kind):
        return _lists(column)
    return _with_missing(_numbers(column.drop_null(), 1), column)


def _with_missing(present: list[bytes], column: pa.Array) -> list[bytes]:
    if not column.null_count:
        return present
    left = iter(present)
    return [next(left) if there else _MISSING for there in column.is_valid().to_pylist()]


def _lists(column: pa.Array) -> list[bytes]:
    items = _cells(pc.list_flatten(column))  # without the items of lists that are missing
    found: list[bytes] = []
    start = 0
    for length in pc.list_value_length(column).to_pylist():
        if length is None:
            found.append(_MISSING)
            continue
        found.append(_framed(b"".join(items[start : start + length])))
        start += length
    return found


def _numbers(column: pa.Array, width: int) -> list[bytes]:
    """Return ``width`` numbers at a time; as for people, zero has no sign."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    array = column.to_numpy(zero_copy_only=False)
    if np.issubdtype(array.dtype, np.floating):
        array = array + array.dtype.type(0)
    content, size = np.ascontiguousarray(array).tobytes(), array.dtype.itemsize * width
    length = size.to_bytes(_LENGTH_BYTES, "big")
    return [length + content[start : start + size] for start in range(0, len(content), size)]
