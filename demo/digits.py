"""The demo's data: scikit-learn's 1,797 handwritten digits.

They name no writers, so ten consecutive records represent one person here. A fifth is never pushed;
every accuracy is measured on it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from sklearn.datasets import load_digits

import expunge
from app.client import ExpungeClient
from app.registry.datasets.columns.parquet import to_parquet
from demo.tables import record_table

TASK = {
    "name": "classification",
    "inputs": [
        {"name": "features", "kind": "array", "shape": [8, 8], "dtype": "uint8", "scale": 1 / 16}
    ],
    "target": {"column": "label", "classes": [*range(10)]},
}
"""What models learn from them."""
_RECORDS_PER_PERSON = 10


@dataclass(frozen=True)
class Digits:
    """The demo's records, and those that the service never sees.

    Attributes:
        images: uint8 [n, 8, 8].
        labels: [n].
        people: subject_ids, [n].
        test_images, test_labels: not pushed.
    """

    images: np.ndarray
    labels: np.ndarray
    people: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @classmethod
    def load(cls) -> Self:
        """Read the digits from scikit-learn."""
        images, labels = load_digits(return_X_y=True)
        images = images.reshape(-1, 8, 8).astype(np.uint8)
        tested = np.arange(len(labels)) % 5 == 4
        count = int((~tested).sum())
        return cls(
            images=images[~tested],
            labels=labels[~tested],
            people=np.array([f"person-{i // _RECORDS_PER_PERSON:03}" for i in range(count)]),
            test_images=images[tested],
            test_labels=labels[tested],
        )

    @property
    def names(self) -> list[str]:
        """Every person's subject_id."""
        return sorted(set(self.people.tolist()))

    def push(self, client: ExpungeClient, dataset: str) -> None:
        """Define a dataset and push all records."""
        client.define_dataset(
            dataset,
            {"features": "list<uint8, 64>", "label": "int8"},
            record_id="record_id",
            subject_id="subject_id",
        )
        table = record_table(
            record_ids=[f"record-{number}" for number in range(len(self.labels))],
            subject_ids=self.people,
            labels=self.labels,
            features=self.images,
        )
        client.push_records(dataset, to_parquet(table))

    def accuracy_of(self, weights: Path, *, trusted: Path) -> float:
        """Return the accuracy of a downloaded model on what was not pushed."""
        model = expunge.load(weights, trusted=trusted)
        with torch.inference_mode():
            found = model(torch.from_numpy(self.test_images)).argmax(dim=1).numpy()
        return float((found == self.test_labels).mean())
