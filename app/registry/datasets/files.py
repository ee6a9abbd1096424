"""Records in the upload format: Parquet with record_id, subject_id, label and features."""

import io

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq


def record_table(
    *,
    record_ids: npt.ArrayLike,
    labels: npt.ArrayLike,
    features: npt.NDArray[np.generic],
    subject_ids: npt.ArrayLike | None = None,
) -> pa.Table:
    """Return the table in the upload format; ``features`` has shape (n, …)."""
    columns = {
        "record_id": pa.array(np.asarray(record_ids).astype(str)),
        "label": pa.array(np.asarray(labels).astype(np.int64)),
        "features": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(features)),
    }
    if subject_ids is not None:
        columns["subject_id"] = pa.array(np.asarray(subject_ids).astype(str))
    return pa.table(columns)


def to_parquet(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
