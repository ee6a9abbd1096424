"""Tables of arrays with labels, as the demo, benchmarks and tests push them."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa


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
