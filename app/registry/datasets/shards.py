"""Shards: records as Arrow tables, whose first column is ``seq``; no owner's id.

A shard keeps its bytes when its dataset is altered: ``fitted`` makes its rows those of today.

They are Arrow IPC streams whose buffers are compressed by LZ4, inside the encrypted object. LZ4 is
read faster than a disk delivers; zstd makes smaller files, and each run would wait for it.
"""

import io
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.domain.errors import CorruptObjectError

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_POOL: Final = pa.system_memory_pool()
"""Arrow's own allocator would keep what a run has freed."""


def pack(seqs: npt.NDArray[np.int64], rows: pa.Table) -> bytes:
    """Return the shard of these rows and their seqs (n,)."""
    return _serialise(rows.combine_chunks().add_column(0, "seq", pa.array(seqs)))


def unpack(
    content: bytes, columns: pa.Schema | None = None
) -> tuple[npt.NDArray[np.int64], pa.Table]:
    """Return a shard's seqs (n,) and rows, whose column may have the name ``seq``, too.

    With ``columns``, some or all that its dataset has by now, the rows are ``fitted`` to them, and
    no other column is decompressed.
    """
    places = None
    if columns is not None:
        stored = pa.ipc.open_stream(pa.BufferReader(content)).schema.names
        wanted = set(columns.names)
        places = [0, *(place for place, name in enumerate(stored) if place and name in wanted)]
    table = _table(content, places).combine_chunks()
    seqs, rows = table.column(0).to_numpy(), table.remove_column(0)
    return seqs, rows if columns is None else fitted(rows, columns, len(seqs))


def fitted(rows: pa.Table, columns: pa.Schema, count: int) -> pa.Table:
    """Return ``count`` rows in the columns that their dataset has by now, which may be wider.

    Those that it had not are missing in each row. Whole numbers are cast, and never to a narrower
    type, which another reader's older schema may have. What float32 holds stays such: its numbers
    and its texts mean the same in each precision, and a cast would make other texts of them.
    """
    stored = set(rows.column_names)
    return pa.table(
        [
            _widened(rows[each.name], each.type)
            if each.name in stored
            else pa.nulls(count, each.type)
            for each in columns
        ],
        names=columns.names,
    )


def _widened(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not pa.types.is_integer(column.type) or not (
        pa.types.is_floating(kind) or kind.bit_width > column.type.bit_width
    ):
        return column
    return column.cast(kind, safe=False)


def seqs_of_shard(content: bytes) -> npt.NDArray[np.int64]:
    """Return a shard's seqs (n,) without unpacking its other columns."""
    seqs: npt.NDArray[np.int64] = _table(content, columns=[0]).column(0).to_numpy()
    return seqs


def without_rows(content: bytes, seqs: Collection[int]) -> bytes:
    """Return the shard without the rows named by ``seqs``."""
    keep = ~np.isin(seqs_of_shard(content), np.fromiter(seqs, dtype=np.int64))
    # No name for the table: it is large, and not needed any more when the rest is written.
    return _serialise(pc.filter(_table(content), pa.array(keep), memory_pool=_POOL))


def unpacked(content: bytes) -> Iterator[bytes]:
    """Yield all bytes that a shard's columns consist of, for searching.

    Raises:
        CorruptObjectError: the content is not a shard.
    """
    try:
        table = _table(content)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObjectError("it cannot be unpacked") from error
    for column in table.columns:
        for chunk in column.chunks:
            yield from (buffer.to_pybytes() for buffer in chunk.buffers() if buffer is not None)


def _serialise(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _table(content: bytes, columns: list[int] | None = None) -> pa.Table:
    options = pa.ipc.IpcReadOptions(included_fields=columns or [])
    stream = pa.ipc.open_stream(pa.BufferReader(content), options=options, memory_pool=_POOL)
    return stream.read_all()
