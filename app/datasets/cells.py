"""Rows as bytes, equal where two rows have the same values, however Arrow lays them out."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LENGTH_BYTES = 8
_MISSING = b"\xff" * _LENGTH_BYTES


def rows_as_bytes(table: pa.Table) -> Iterator[bytes]:
    """Yield each row's bytes: for each cell in order its length and its bytes, or no value."""
    columns = [_cells(column.combine_chunks()) for column in table.columns]
    for row in zip(*columns, strict=True):
        yield b"".join(_framed(cell) for cell in row)


def _framed(cell: bytes | None) -> bytes:
    return _MISSING if cell is None else len(cell).to_bytes(_LENGTH_BYTES, "big") + cell


def _cells(column: pa.ChunkedArray | pa.Array) -> Sequence[bytes | None]:
    if isinstance(column, pa.ChunkedArray):  # it is too long for one array
        return [cell for chunk in column.chunks for cell in _cells(chunk)]
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
        return found
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(column)
    return _numbers(column, 1)


def _lists(column: pa.Array) -> list[bytes | None]:
    flat = pc.list_flatten(column)  # without the items of lists that are missing
    if pa.types.is_fixed_size_list(column.type):
        present = iter(_numbers(flat, column.type.list_size))
        return [next(present) if there else None for there in column.is_valid().to_pylist()]
    items = _cells(flat)
    found: list[bytes | None] = []
    start = 0
    for length in pc.list_value_length(column).to_pylist():
        if length is None:
            found.append(None)
            continue
        found.append(b"".join(_framed(item) for item in items[start : start + length]))
        start += length
    return found


def _numbers(column: pa.Array, width: int) -> list[bytes | None]:
    """Return ``width`` numbers at a time; as for people, zero has no sign."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    blank = pa.array([0]).cast(column.type)[0]
    values = pc.fill_null(column, blank)
    array = values.to_numpy(zero_copy_only=False)
    if np.issubdtype(array.dtype, np.floating):
        array = array + array.dtype.type(0)
    content, size = np.ascontiguousarray(array).tobytes(), array.dtype.itemsize * width
    cells: list[bytes | None] = [
        content[start : start + size] for start in range(0, len(content), size)
    ]
    if column.null_count:
        valid = column.is_valid().to_pylist()
        cells = [cell if there else None for cell, there in zip(cells, valid, strict=True)]
    return cells
