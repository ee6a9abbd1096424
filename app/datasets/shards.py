"""Shards: records as Arrow tables, whose first column is ``seq``; no owner's id.

They are Arrow IPC streams whose buffers are compressed by LZ4, inside the encrypted object. LZ4 is
read faster than a disk delivers; zstd makes smaller files, and each run would wait for it.
"""

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.domain.errors import CorruptObjectError

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")


def encode_shard(
    *,
    seqs: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    features: npt.NDArray[np.generic],
) -> bytes:
    """Return the shard of ``seq``, ``label`` and ``features``, which has shape (n, size)."""
    values = pa.array(np.ascontiguousarray(features).reshape(-1))
    table = pa.table(
        {
            "seq": seqs,
            "label": labels,
            "features": pa.FixedSizeListArray.from_arrays(values, features.shape[1]),
        }
    )
    return _serialise(table)


def decode_shard(
    content: bytes,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.generic]]:
    """Return a shard's seqs (n,), labels (n,) and features (n, size)."""
    table = _table(content).combine_chunks()
    column = table["features"].combine_chunks()
    features = column.flatten().to_numpy().reshape(-1, column.type.list_size)
    return table["seq"].to_numpy(), table["label"].to_numpy(), features


def seqs_of_shard(content: bytes) -> npt.NDArray[np.int64]:
    """Return a shard's seqs (n,) without unpacking its other columns."""
    seqs: npt.NDArray[np.int64] = _table(content, columns=[0]).column(0).to_numpy()
    return seqs


def without_rows(content: bytes, seqs: Collection[int]) -> bytes:
    """Return the shard without the rows named by ``seqs``."""
    table = _table(content)
    keep = ~np.isin(table.column(0).to_numpy(), np.fromiter(seqs, dtype=np.int64))
    return _serialise(table.filter(pa.array(keep)))


def unpacked(content: bytes) -> Iterator[bytes]:
    """Yield all bytes that a shard's columns consist of, for searching.

    Raises:
        CorruptObjectError: this is no shard.
    """
    try:
        table = _table(content)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObjectError("it cannot be unpacked") from error
    for column in table.columns:
        for chunk in column.chunks:
            yield from (buffer.to_pybytes() for buffer in chunk.buffers() if buffer is not None)


def _serialise(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _table(content: bytes, columns: list[int] | None = None) -> pa.Table:
    # Arrow's own allocator would keep what a run has freed.
    options = pa.ipc.IpcReadOptions(included_fields=columns or [])
    reader = pa.ipc.open_stream(
        pa.BufferReader(content), options=options, memory_pool=pa.system_memory_pool()
    )
    return reader.read_all()
