"""The benchmark of what users would otherwise do with a head, on small digits."""

import json

import numpy as np
import pytest

from benchmarks import harness, rivals
from benchmarks.convex import two_digits
from benchmarks.data import load
from benchmarks.rivals import CertifiedRemoval, figure, rows_of, table


@pytest.fixture(scope="module")
def case():
    return two_digits(load("digits"))


def test_certified_removal_bounds_the_gradient_that_is_left(case):
    model = CertifiedRemoval(case, noise=3.0, seed=3)
    drawn = 3.0 * np.random.default_rng(3).standard_normal(case.train.inputs.shape[1])
    bounds = []
    for gone in range(1, 31):
        model.forget()
        inputs = case.train.inputs.numpy()[gone:].astype(np.float64)
        signs = 2.0 * case.train.target.numpy()[gone:] - 1
        chance = 1 / (1 + np.exp(signs * (inputs @ model.weights)))
        gradient = -(signs * chance) @ inputs + drawn
        gradient += case.weight_decay * len(signs) * model.weights
        bounds.append((float(np.linalg.norm(gradient)), model.left))
    assert model.trainings == 1
    assert bounds[-1][0] > 1e-5
    assert [pair for pair in bounds if pair[0] > pair[1]] == []


def test_a_spent_budget_means_a_new_training(case):
    model = CertifiedRemoval(case, noise=1e-3, seed=0)
    for _ in range(3):
        model.forget()
        assert model.left <= model.budget
    assert model.trainings > 1


def test_every_method_tells_the_digits_apart(case, tmp_path):
    rows = list(rows_of(case))
    assert [row["method"].split()[0] for row in rows] == ["scikit-learn"] * 3 + [
        "certified",
        "ridge",
    ]
    assert min(row["accuracy"] for row in rows) > 0.85
    document = {"rows": rows}
    assert "| ridge head, ours |" in table(document)
    assert figure(document, tmp_path / "plot.png") is None
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_the_picture_has_eight_methods_for_a_head():
    document = json.loads((harness.RESULTS / "rivals.json").read_text())
    assert len({name for name, _, _ in rivals._heads(document)}) >= 8
