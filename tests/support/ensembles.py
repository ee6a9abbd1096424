"""Ensembles of seven kinds: of tables, pictures and texts, grown, from scratch or public."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_digits

from app.registry.datasets.columns.parquet import to_parquet
from demo.tables import record_table
from tests.support import adapters, digits, shops
from tests.support.pictures import LITE0, public_lite0

RECORDS_EACH = 2
PEOPLE_OF_A_MEMBER = 8
SMALL = {"name": "mlp", "options": {"hidden": [8]}}
TREES = {
    "name": "boosted_trees",
    "options": {"trees": 20, "leaves": 8, "smallest_leaf": 1},
}
PUBLIC = {"name": "pictures", "frozen": False}
_LEARNS = {"epochs": 1, "batch_size": 8, "learning_rate": 0.1}


@dataclass(frozen=True)
class Kind:
    """A kind of ensemble: what it learns, and from what."""

    of: dict[str, Any]
    task: dict[str, Any]
    rows: Callable[[Sequence[int]], pa.Table]
    columns: dict[str, Any]
    recipe: dict[str, Any] = field(default_factory=lambda: dict(_LEARNS))
    backbone: dict[str, Any] | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether two trainings on the same records end apart."""
        return self.of != TREES

    def define(
        self, api: httpx.Client, *, dataset: str, model: str, members: int, **policy: object
    ) -> None:
        """Define a dataset, push what its people have, and define an ensemble that learns it.

        Nothing is refilled before somebody asks for it.
        """
        _answered(api.post("/v1/datasets", json={"name": dataset, **self.columns}))
        rows = self.rows(range(RECORDS_EACH * PEOPLE_OF_A_MEMBER * members))
        _answered(api.put(f"/v1/datasets/{dataset}/records", content=to_parquet(rows)))
        architecture = {"name": "ensemble", "members": members, "of": self.of}
        if self.backbone is not None:
            shape, of = (8, 8), {"classes": 4, "architecture": self.of, "source": "its package"}
            name = self.backbone["name"]
            _answered(
                api.post("/v1/backbones", json={"name": name, "input": {"shape": shape}, **of})
            )
            public = public_lite0(input_shape=shape, classes=4)  # the last layer is each's own
            _answered(api.put(f"/v1/backbones/{name}/weights", content=public))
            architecture["backbone"] = self.backbone
        definition = {
            "name": model,
            "dataset": dataset,
            "task": self.task,
            "architecture": architecture,
            "recipe": {"held_out_fraction": 0.1, **self.recipe},
            "policy": {"refill_after_s": None, "refill_at": None} | policy,
        }
        _answered(api.post("/v1/models", json=definition))


def _answered(answer: httpx.Response) -> None:
    assert answer.is_success, answer.text


def allowed_networks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return the factories of all kinds; the text's public weights are written to a folder."""
    adapters.public_transformer(folder, monkeypatch)
    return LITE0, adapters.FACTORY


def digit_rows(numbers: Sequence[int]) -> pa.Table:
    images, labels = load_digits(return_X_y=True)
    return record_table(
        record_ids=[f"record-{i}" for i in numbers],
        subject_ids=[f"person-{i // RECORDS_EACH}" for i in numbers],
        labels=labels[numbers],
        features=images[numbers].reshape(-1, 8, 8).astype(np.uint8),
    )


def shop_rows(numbers: Sequence[int]) -> pa.Table:
    return pa.concat_tables(shops.rows(range(i, i + 1)) for i in numbers)


def text_rows(numbers: Sequence[int]) -> pa.Table:
    texts = [f"{adapters.OF[i % 2]} wind {i}" for i in numbers]
    return pa.table(
        {
            "sentence": [f"sentence-{i}" for i in numbers],
            "author": [f"author-{i // RECORDS_EACH}" for i in numbers],
            "text": texts,
            "of": [text.partition(" ")[0] for text in texts],
        }
    )


def of_digits(of: dict[str, Any], **more: Any) -> Kind:
    columns = {name: each for name, each in digits.DATASET.items() if name != "name"}
    return Kind(of, digits.TASK, digit_rows, columns, **more)


def of_shops(task: str, of: dict[str, Any] = SMALL, **more: Any) -> Kind:
    return Kind(of, shops.TASKS[task], shop_rows, shops.SCHEMA.to_json(), **more)


SENTENCES = {
    "columns": {"text": "string", "of": "string"},
    "record_id": "sentence",
    "subject_id": "author",
}
KINDS = {
    "mlp": of_digits(SMALL),
    "cnn": of_digits({"name": "cnn", "options": {"channels": [4]}}),
    "public": of_digits(
        {"name": "custom", "factory": LITE0},
        recipe=_LEARNS | {"learning_rate": 0.01},
        backbone=PUBLIC,
    ),
    "text": Kind(
        adapters.NETWORK,
        adapters.TASK,
        text_rows,
        SENTENCES,
        recipe=_LEARNS | {"optimizer": "adamw", "learning_rate": 0.01},
    ),
    "regression": of_shops("huber"),
    "multi_label": of_shops("multi_label"),
    "trees": of_shops("squared", TREES, recipe={}),
}
