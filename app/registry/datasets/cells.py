"""Whether two rows have the same values, however Arrow lays them out."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_LENGTH_BYTES = 8
_MISSING = b"\xff" * _LENGTH_BYTES


def equal_rows(one: pa.Table, other: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each of n rows whether it is equal in two tables of one schema, (n,)."""
    same = np.ones(len(one), dtype=np.bool_)
    lists = []
    for name in one.column_names:
        if pa.types.is_nested(one.schema.field(name).type):
            lists.append(name)
            continue
        here, there = one[name], other[name]
        equal = pc.fill_null(pc.equal(here, there), fill_value=False)
        absent = pc.and_(pc.is_null(here), pc.is_null(there))
        same &= pc.or_(equal, absent).to_numpy()
    if lists:
        pairs = zip(
            rows_as_bytes(one.select(lists)), rows_as_bytes(other.select(lists)), strict=True
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
