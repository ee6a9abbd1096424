"""Shards: records as Arrow tables of ``seq``, ``label``, ``features``; no owner's id."""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def encode_shard(
    *,
    seqs: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    features: npt.NDArray[np.generic],
) -> bytes:
    """Return an Arrow IPC stream; ``features`` has shape (n, size)."""
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
    table = pa.ipc.open_stream(pa.BufferReader(content)).read_all().combine_chunks()
    column = table["features"].combine_chunks()
    features = column.flatten().to_numpy().reshape(-1, column.type.list_size)
    return table["seq"].to_numpy(), table["label"].to_numpy(), features


def without_rows(content: bytes, seqs: Collection[int]) -> bytes:
    """Return the shard without the rows named by ``seqs``."""
    table = pa.ipc.open_stream(pa.BufferReader(content)).read_all()
    keep = ~np.isin(table["seq"].to_numpy(), np.fromiter(seqs, dtype=np.int64))
    return _serialise(table.filter(pa.array(keep)))


def _serialise(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
