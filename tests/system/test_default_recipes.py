"""Every built-in network learns by its default recipe, whatever the size of its features."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from fastapi.testclient import TestClient
from sklearn.datasets import load_digits

from app.registry.datasets.columns.parquet import to_parquet
from demo.tables import record_table
from tests.support.digits import DATASET, TASK

MARGIN = 0.4
MLP = {"name": "mlp", "options": {"hidden": [32]}}
RANDOM = {"name": "mlp", "options": {"hidden": [128]}}
EXACT = {"mechanism": "retraining"}
SHARDED = {"mechanism": "sharded_retraining", "forget": "retrain"}


def _several(members: int) -> dict[str, Any]:
    return {"name": "ensemble", "members": members, "of": MLP}


CASES = [
    *(({"name": name}, EXACT, None) for name in ("logistic", "koloskova_mnist")),
    *(({"name": name}, {}, None) for name in ("linear_head", "ridge_head")),
    (MLP, EXACT, None),
    (MLP, {"mechanism": "gradient_clipping"}, None),
    (MLP, {"mechanism": "dp_sgd", "epsilon": 8.0}, None),
    ({"name": "mlp", "options": {"hidden": [64, 64]}}, EXACT, None),
    ({"name": "cnn", "options": {"channels": [8, 16]}}, EXACT, None),
    *((_several(members), SHARDED, None) for members in (4, 8, 16)),
    *((each, EXACT, size) for each in (MLP, {"name": "logistic"}) for size in (0.1, 1.0, 10.0)),
    *((_several(members), SHARDED, size) for members in (4, 16) for size in (0.1, 1.0, 10.0)),
    *(({"name": name}, {}, size) for name in ("linear_head", "ridge_head") for size in (0.1, 10.0)),
]


@pytest.fixture
def digits(api: TestClient) -> TestClient:
    images, labels = load_digits(return_X_y=True)
    table = record_table(
        record_ids=[f"record-{i}" for i in range(len(labels))],
        subject_ids=[f"subject-{i}" for i in range(len(labels))],
        labels=labels,
        features=images.reshape(-1, 8, 8).astype(np.uint8),
    )
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    assert api.put("/v1/datasets/digits/records", content=to_parquet(table)).is_success
    return api


def _provide(api: TestClient, size: float) -> None:
    """Define a public backbone of random features that are of this size in the mean."""
    dice = np.random.default_rng(7)
    layers = ((128, 64), (10, 128))
    first, last = (dice.standard_normal(shape) * (2 / shape[1]) ** 0.5 for shape in layers)
    weights = {"1.weight": first * size, "1.bias": np.zeros(128)}
    weights |= {"3.weight": last, "3.bias": np.zeros(10)}
    backbone = {
        "name": "public",
        "architecture": RANDOM,
        "input": {"shape": [8, 8]},
        "classes": 10,
        "source": "random",
    }
    assert api.post("/v1/backbones", json=backbone).status_code == 201
    content = safetensors.numpy.save({name: w.astype(np.float32) for name, w in weights.items()})
    assert api.put("/v1/backbones/public/weights", content=content).is_success


def _score(
    api: TestClient, work: Callable[[], None], architecture: dict[str, Any], policy: dict[str, Any]
) -> float:
    """Return by how much the first release is better than its baseline."""
    body = {
        "name": "m",
        "dataset": "digits",
        "task": TASK,
        "architecture": architecture,
        "policy": policy,
    }
    answer = api.post("/v1/models", json=body)
    assert answer.status_code == 201, answer.text
    work()
    model = api.get("/v1/models/m").json()
    assert model["warnings"] == []
    found = model["certified"]["evaluation"]
    return float(found["metrics"]["accuracy"] - found["baseline"])


@pytest.mark.parametrize(("architecture", "policy", "size"), CASES)
def test_a_default_recipe_is_far_better_than_the_baseline(
    digits: TestClient,
    work: Callable[[], None],
    architecture: dict[str, Any],
    policy: dict[str, Any],
    size: float | None,
) -> None:
    if size is not None:
        _provide(digits, size)
        architecture = architecture | {"backbone": {"name": "public"}}
    assert _score(digits, work, architecture, policy) > MARGIN


def test_a_backbone_is_trained_on_by_default(digits: TestClient, work: Callable[[], None]) -> None:
    _provide(digits, 1.0)
    trained_on = RANDOM | {"backbone": {"name": "public", "frozen": False}}
    assert _score(digits, work, trained_on, EXACT) > MARGIN
