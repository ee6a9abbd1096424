"""Shards: records as Arrow tables, whose first column is ``seq``; no owner's id.

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
    content: bytes, names: Collection[str] | None = None
) -> tuple[npt.NDArray[np.int64], pa.Table]:
    """Return a shard's seqs (n,) and rows, whose column may have the name ``seq``, too.

    Of the rows' columns nothing is decompressed but those with these ``names``, if any are given.
    """
    columns = None
    if names is not None:
        stored = pa.ipc.open_stream(pa.BufferReader(content)).schema.names
        columns = [0, *(place for place, name in enumerate(stored) if place and name in names)]
    table = _table(content, columns).combine_chunks()
    return table.column(0).to_numpy(), table.remove_column(0)


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
