"""The digits of scikit-learn as a table: 1,797 pictures by 43 invented writers."""

import pandas as pd
from sklearn.datasets import load_digits

SHAPE = (1, 8, 8)
COLUMNS = {"picture": "list<float32, 64>", "digit": "int64"}
IDS = {"record_id": "picture_id", "subject_id": "writer"}
TASK = {
    "name": "classification",
    "inputs": [{"name": "picture", "kind": "array", "shape": list(SHAPE), "dtype": "float32"}],
    "target": {"column": "digit", "classes": list(range(10))},
}
"""What both digit bridges learn."""


def digits() -> pd.DataFrame:
    """Return one row for each picture; pixels are 0 … 1."""
    images, labels = load_digits(return_X_y=True)
    return pd.DataFrame(
        {
            "picture_id": [f"picture-{i}" for i in range(len(labels))],
            "writer": [f"writer-{i // 42}" for i in range(len(labels))],
            "picture": list((images / 16).astype("float32")),
            "digit": labels,
        }
    )
