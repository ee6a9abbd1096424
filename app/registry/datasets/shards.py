"""Shards: records as Arrow tables, whose first column is ``seq``; no owner's id.

They are Arrow IPC streams whose buffers are compressed by LZ4, inside the encrypted object. LZ4 is
read faster than a disk delivers; zstd makes smaller files, and each run would wait for it.

A stream consists of groups of rows, and an index follows it, of numbers of 8 bytes: the first seq
of each group, the last seq of each, where each begins and where the last one ends, and how many
there are. Who wants some records reads the index and their groups.
"""

import io
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.domain.errors import CorruptObjectError

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_POOL: Final = pa.system_memory_pool()
"""Arrow's own allocator would keep what a run has freed."""
GROUP_ROWS: Final = 1024
"""How many rows a group has at most."""
_LEAST_GROUP_ROWS: Final = 64
_GROUP_BYTES: Final = 1 << 20
_COLUMN_BYTES: Final = 4096
_INDEX: Final = np.dtype("<i8")
_TAIL_BYTES: Final = 1 << 16
_GAP_BYTES: Final = 1 << 16
"""What lies between two groups is read with them if it is not more."""


def pack(
    seqs: npt.NDArray[np.int64], rows: pa.Table, places: npt.NDArray[np.int64] | None = None
) -> bytes:
    """Return the shard of these rows, or of those at n ``places``, and their seqs (n,)."""
    step, schema = _group_rows(rows), rows.schema.insert(0, pa.field("seq", pa.int64()))
    if places is None:
        table = rows.add_column(0, schema.field(0), pa.array(seqs))
        groups = (group for group in table.to_batches(step) if group.num_rows)
        return _serialise(schema, groups)
    parts = (slice(start, start + step) for start in range(0, len(seqs), step))
    groups = (
        rows.take(pa.array(places[part]))
        .add_column(0, schema.field(0), pa.array(seqs[part]))
        .combine_chunks()
        .to_batches()[0]
        for part in parts
    )
    return _serialise(schema, groups)


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


def read_groups(
    size: int, read: Callable[[int, int], bytes], wanted: npt.NDArray[np.int64]
) -> bytes:
    """Return those groups of a shard that may hold the wanted records, ascending, as a shard.

    Args:
        size: how many bytes the shard has.
        read: returns those from a place up to another one.
        wanted: int64 [n], their seqs, ascending.
    """
    tail = read(max(0, size - _TAIL_BYTES), size)
    count = int(np.frombuffer(tail[-_INDEX.itemsize :], _INDEX)[0])
    length = _INDEX.itemsize * (3 * count + 2)
    if length > len(tail):
        tail = read(size - length, size)
    numbers = np.frombuffer(tail[-length:], _INDEX)
    firsts, lasts, begins = numbers[:count], numbers[count : 2 * count], numbers[2 * count : -1]
    is_wanted = np.searchsorted(wanted, lasts, side="right") > np.searchsorted(wanted, firsts)
    spans = [(0, int(begins[0]))]
    for group in np.flatnonzero(is_wanted).tolist():
        start, stop = int(begins[group]), int(begins[group + 1])
        if start - spans[-1][1] <= _GAP_BYTES:
            spans[-1] = spans[-1][0], stop
        else:
            spans.append((start, stop))
    return b"".join(read(start, stop) for start, stop in spans)


def seqs_of_shard(content: bytes) -> npt.NDArray[np.int64]:
    """Return a shard's seqs (n,) without unpacking its other columns."""
    seqs: npt.NDArray[np.int64] = _table(content, columns=[0]).column(0).to_numpy()
    return seqs


def without_rows(content: bytes, seqs: Collection[int]) -> bytes:
    """Return the shard without the rows named by ``seqs``."""
    keep = ~np.isin(seqs_of_shard(content), np.fromiter(seqs, dtype=np.int64))
    # No name for the table: it is large, and not needed any more when the rest is written.
    left = pc.filter(_table(content), pa.array(keep), memory_pool=_POOL)
    return pack(left.column(0).to_numpy(), left.remove_column(0))


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


def _group_rows(rows: pa.Table) -> int:
    """Return how many rows a group of these has; its columns are not too short to be read fast."""
    size = max(_GROUP_BYTES, _COLUMN_BYTES * rows.num_columns)
    fitting: int = size * rows.num_rows // max(1, rows.nbytes)
    return min(GROUP_ROWS, max(_LEAST_GROUP_ROWS, fitting))


def _serialise(schema: pa.Schema, groups: Iterable[pa.RecordBatch]) -> bytes:
    sink = io.BytesIO()
    firsts, lasts, begins = list[int](), list[int](), [schema.serialize().size]
    with pa.ipc.new_stream(sink, schema, options=_COMPRESSED) as writer:
        for group in groups:
            writer.write_batch(group)
            firsts.append(group.column(0)[0].as_py())
            lasts.append(group.column(0)[-1].as_py())
            begins.append(sink.tell())
    sink.write(np.array([*firsts, *lasts, *begins, len(firsts)], dtype=_INDEX).tobytes())
    return sink.getvalue()


def _table(content: bytes, columns: list[int] | None = None) -> pa.Table:
    options = pa.ipc.IpcReadOptions(included_fields=columns or [])
    stream = pa.ipc.open_stream(pa.BufferReader(content), options=options, memory_pool=_POOL)
    return stream.read_all()
