"""scikit-learn's handwritten digits as records: 1,797 images of 8 x 8, ten classes."""

from functools import cache
from typing import Any

import numpy as np

from app.registry.datasets.columns.parquet import to_parquet
from demo.tables import record_table
from tests.support.arrays import array_schema, array_task

RECORDS_PER_SUBJECT = 10
DATASET: dict[str, Any] = {"name": "digits", **array_schema(64, "uint8").to_json()}
TASK = array_task(8, 8, classes=10, dtype="uint8", scale=0.0625)
RECIPE = {"epochs": 2, "batch_size": 64, "learning_rate": 0.1, "held_out_fraction": 0.2}


@cache
def digits_parquet(records: int = 300) -> bytes:
    """Return the first ``records`` digits: ids ``record-0`` …, one subject per ten records."""
    from sklearn.datasets import load_digits  # takes a second, and few tests need it

    images, labels = load_digits(return_X_y=True)
    numbers = np.arange(records)
    return to_parquet(
        record_table(
            record_ids=[f"record-{i}" for i in numbers],
            subject_ids=[f"subject-{i // RECORDS_PER_SUBJECT}" for i in numbers],
            labels=labels[:records],
            features=images[:records].reshape(-1, 8, 8).astype(np.uint8),
        )
    )


def model(name: str = "digits-mlp", **policy: object) -> dict[str, object]:
    """Return a model definition with a small recipe."""
    return {
        "name": name,
        "dataset": "digits",
        "task": TASK,
        "architecture": {"name": "mlp", "options": {"hidden": [16]}},
        "recipe": RECIPE,
        "policy": {"mechanism": "gradient_clipping", **policy},
    }


def head(name: str = "digits-head", *, epochs: int = 5, **policy: object) -> dict[str, object]:
    """Return the definition of a linear head with a short training."""
    return {
        "name": name,
        "dataset": "digits",
        "task": TASK,
        "architecture": {"name": "linear_head"},
        "recipe": {"epochs": epochs, "batch_size": 32, "held_out_fraction": 0.2},
        "policy": policy,
    }
