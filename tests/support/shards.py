"""Shards of records that a test has as arrays."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.registry.datasets.shards import pack, unpack


def encode_shard(
    *,
    seqs: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    features: npt.NDArray[np.generic],
) -> bytes:
    """Return the shard of ``seq``, ``label`` and ``features``, which has shape (n, size)."""
    values = pa.array(np.ascontiguousarray(features).reshape(-1))
    listed = pa.FixedSizeListArray.from_arrays(values, features.shape[1])
    return pack(seqs, pa.table({"label": labels, "features": listed}))


def decode_shard(
    content: bytes,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.generic]]:
    """Return such a shard's seqs (n,), labels (n,) and features (n, size)."""
    seqs, rows = unpack(content)
    column = rows["features"].combine_chunks()
    features = column.flatten().to_numpy().reshape(-1, column.type.list_size)
    return seqs, rows["label"].to_numpy(), features
