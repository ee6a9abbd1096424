"""Pipelines of LogisticRegression and Ridge, with the weights of a head that forgets exactly."""

import math

import numpy as np
import pandas as pd
import safetensors.numpy
from certified import forgotten, published, trained
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

# As workers.training.networks.heads: docs/how-to/use-a-model.md has the formulas.
MARGIN = 1 - 2.0**-30


def scaled(table: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return numbers between 0 and 1, by bounds that do not come from the table."""
    return np.clip((table - low) / (high - low), 0, 1)


def frame_of(features: np.ndarray, names: list[str], **columns: object) -> pd.DataFrame:
    """Return a table with a row for each record."""
    frame = pd.DataFrame(features, columns=names).assign(**columns)
    frame.insert(0, "row", [f"row-{i}" for i in range(len(frame))])
    return frame


# LogisticRegression: a linear head, a linear function where no row exceeds its feature_norm.
rows, answers = load_breast_cancer(return_X_y=True)
names = [f"measure-{i}" for i in range(rows.shape[1])]
bounds = np.array(
    [30, 40, 190, 2510, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1, 3, 5, 22, 550, 0.04, 0.2, 0.4, 0.06, 0.1,
     0.03, 40, 50, 260, 4300, 0.3, 1.1, 1.3, 0.3, 0.7, 0.3]
)  # fmt: skip
features = scaled(rows, np.zeros(30), bounds)
BIAS, NORM = 0.5, math.sqrt(30)
client = trained(
    frame_of(features, names, benign=answers.astype(bool)),
    {
        "name": "tumours",
        "dataset": "tumours",
        "task": {
            "name": "classification",
            "inputs": [{"name": name, "kind": "number"} for name in names],
            "target": {"column": "benign", "classes": [False, True]},
        },
        "architecture": {
            "name": "linear_head",
            "options": {"bias": BIAS, "feature_norm": NORM},
        },
        "recipe": {"held_out_fraction": 0},
        "policy": {"mechanism": "exact_training"},
    },
    dict.fromkeys(names, "float64") | {"benign": "bool"},
    record_id="row",
)
forgotten(client, "tumours", record_ids=["row-5"])

weights, model = published(client, "tumours")
weight = safetensors.numpy.load_file(weights)["weight"]
classifier = LogisticRegression()
classifier.classes_ = np.array([False, True])
classifier.coef_ = weight[:, :-1] * math.sqrt(1 - BIAS**2) * MARGIN / NORM
classifier.intercept_ = weight[:, -1] * BIAS * MARGIN
predicted = model.predict(frame_of(features, names))
scale = FunctionTransformer(scaled, kw_args={"low": np.zeros(30), "high": bounds})
pipeline = make_pipeline(scale, classifier)
assert pipeline.predict(rows).tolist() == predicted["prediction"].to_pylist()
np.testing.assert_allclose(
    pipeline.predict_proba(rows), predicted["probabilities"].to_pylist(), atol=1e-5
)
right = pipeline.score(rows, answers.astype(bool))
assert right > 0.85, right
print(f"LogisticRegression: {right:.1%} right")

# Ridge: a ridge head. Features and target lie within public bounds, so that nothing is clipped.
rows, progress = load_diabetes(return_X_y=True, scaled=False)
names = [f"measure-{i}" for i in range(rows.shape[1])]
low = np.array([0, 1, 10, 50, 50, 20, 10, 1, 2, 40])
high = np.array([100, 2, 50, 150, 350, 280, 120, 12, 8, 140])
features = scaled(rows, low, high)
OFFSET, SCALE = 175.0, 1 / 175
client = trained(
    frame_of(features, names, progress=progress),
    {
        "name": "progress",
        "dataset": "progress",
        "task": {
            "name": "regression",
            "inputs": [{"name": name, "kind": "number"} for name in names],
            "target": {"columns": ["progress"], "offset": OFFSET, "scale": SCALE},
        },
        "architecture": {
            "name": "ridge_head",
            "options": {"feature_range": 1.0, "target_range": 1.0},
        },
        "recipe": {"held_out_fraction": 0},
        "policy": {"mechanism": "sufficient_statistics"},
    },
    dict.fromkeys((*names, "progress"), "float64"),
    record_id="row",
)
forgotten(client, "progress", record_ids=["row-8"])

weights, model = published(client, "progress")
tensors = safetensors.numpy.load_file(weights)
ridge = Ridge()
ridge.coef_ = tensors["weight"][0] / SCALE
ridge.intercept_ = tensors["bias"][0] / SCALE + OFFSET
predicted = model.predict(frame_of(features, names))
scale = FunctionTransformer(scaled, kw_args={"low": low, "high": high})
pipeline = make_pipeline(scale, ridge)
np.testing.assert_allclose(pipeline.predict(rows), predicted["progress"].to_pylist(), rtol=1e-4)
explained = pipeline.score(rows, progress)
assert explained > 0.3, explained
print(f"Ridge: R² {explained:.2f}")
