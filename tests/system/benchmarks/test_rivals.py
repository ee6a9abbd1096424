"""The benchmark of what users would otherwise do with a head, on small digits."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import ensembles_cases, harness, rivals
from benchmarks.convex import two_digits
from benchmarks.data import load
from benchmarks.rivals import CertifiedRemoval, figure, head_rows, network_rows, table


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


def test_two_runs_of_r2d_drift_no_further_apart_than_its_noise_hides(case):
    inputs, signs = rivals._numbers(case)
    steps, rate = 40, 0.5
    ends = []
    for gone in (0, 1):
        weights = np.zeros(inputs.shape[1])
        for step in range(steps):
            here = slice(max(gone, int(step >= steps // 2)), None)
            slope = 1 / (1 + np.exp(signs[here] * (inputs[here] @ weights)))
            weights += rate * (signs[here] * slope) @ inputs[here] / len(slope)
        ends.append(weights)
    apart = np.linalg.norm(ends[0] - ends[1])
    few, many = (rivals.rewound(case, count, rate, 0) for count in (4, 200))
    assert 0 < apart < 2 * rate / case.records * steps * (1 + rate / 4) ** steps
    assert many[0] < few[0]  # the noise grows with every step


def test_every_method_tells_the_digits_apart(case):
    rows = list(head_rows(case))
    names = ["scikit-learn"] * 3 + ["certified", "R2D,", "R2D,", "ridge"]
    assert [row["method"].split()[0] for row in rows] == names
    assert min(row["accuracy"] for row in rows if row["method"][:3] != "R2D") > 0.85


def test_the_rivals_of_a_network_are_trained_without_what_is_forgotten(monkeypatch):
    case = ensembles_cases.digits(public=False)
    seen = []
    real = rivals._trained

    def watched(case, chosen, recipe):
        seen.append(len(chosen))
        return real(case, chosen, replace(recipe, epochs=1))

    monkeypatch.setattr(rivals, "SEEDS", 1)
    monkeypatch.setattr(rivals, "has_opacus", lambda: False)
    monkeypatch.setattr(rivals, "_trained", watched)
    torch.manual_seed(0)
    rows = list(network_rows(replace(case, recipe=replace(case.recipe, epochs=1))))
    names = ["retraining", "SISA", "the", "DP-SGD", "DP-SGD"]
    assert [row["method"].split()[0] for row in rows] == names
    assert seen[0] == sum(seen[1:6]) == sum(seen[6:]) == len(case.train) - rivals.REQUESTS
    assert "| network: SISA as published, 5 shards |" in table({"rows": [], "network_rows": rows})


def test_the_picture_has_eight_methods_for_heads_and_for_networks(tmp_path):
    document = json.loads((harness.RESULTS / "rivals.json").read_text())
    head = [*rivals._of_rows(document["rows"]), *rivals._in_a_row()]
    network = [*rivals._of_ensembles("scratch"), *rivals._of_rows(document["network_rows"])]
    for points in (head, network):
        assert len({name for name, _, _ in points}) >= 8
    for case in ("scratch", "pictures", "texts"):
        assert "ensemble of 8, left out" in {name for name, _, _ in rivals._of_ensembles(case)}
    figure(document, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0
