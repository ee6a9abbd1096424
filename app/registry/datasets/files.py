"""Tables of arrays, and Parquet files of any table."""

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
    """Return a table of arrays with labels; ``features`` has shape (n, …).

    Without ``subject_ids``, the records belong to nobody.
    """
    columns = {
        "record_id": pa.array(np.asarray(record_ids).astype(str)),
        "label": pa.array(np.asarray(labels).astype(np.int64)),
        "features": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(features)),
    }
    subjects = [None] * len(columns["label"]) if subject_ids is None else subject_ids
    columns["subject_id"] = pa.array(subjects, pa.string())
    return pa.table(columns)


def to_parquet(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file.

    Only texts go into dictionaries: those of numbers take ten times as long, and save nothing.
    """
    sink = io.BytesIO()
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    pq.write_table(table, sink, use_dictionary=texts)
    return sink.getvalue()
