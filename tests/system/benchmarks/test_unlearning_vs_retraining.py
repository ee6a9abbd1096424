import json

import pytest
import torch
from torch import nn

from benchmarks import unlearning_vs_retraining as comparison

STARTS = 5


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "comparison.json"
    options = ["--dataset", "digits", "--records", "600", "--seeds", "2", "--original-epochs", "1"]
    comparison.main([*options, "--budgets", "2", "3", "--results", str(path)])
    assert path.with_suffix(".png").stat().st_size > 0
    return path


def test_every_arm_is_scored_at_every_budget(written):
    figures = json.loads(written.read_text())["digits, 600 pictures"]
    starts = figures["learning_rates"]
    assert next(iter(starts)) == "own"
    assert len(figures["rows"]) == 2 * (7 + 3 * (len(starts) - 1))
    assert {row["start"] for row in figures["rows"]} == set(starts)
    assert all(len(row["accuracies"]) == 2 for row in figures["rows"])
    assert all(0 <= row["mean"] <= 1 for row in figures["rows"])
    assert str(written.parent) not in written.read_text()


def test_rates_are_those_that_do_best_on_held_out_pictures(written):
    figures = json.loads(written.read_text())["digits, 600 pictures"]
    tuning = figures["tuning"]
    assert len(tuning) == STARTS * len(comparison.RATES) + 2
    for start, rate in figures["learning_rates"].items():
        tried = [row for row in tuning if row["start"] == start]
        best = max(tried, key=lambda row: row["accuracy"])
        assert best["learning_rate"] == rate


def test_a_start_is_the_scale_of_the_frame():
    def network():
        return nn.Linear(100, 10)

    own, twice, raw = (
        comparison.ReferenceFrame.of(lambda change=change: change(network())).scale["weight"]
        for name, change in comparison.starts_of("cifar10").items()
        if name in ("own", "2 times", "raw 0.5")
    )
    torch.manual_seed(0)
    assert own == pytest.approx(float(network().weight.square().mean().sqrt()), rel=0.1)
    assert twice == pytest.approx(2 * own, rel=1e-3)
    assert raw == pytest.approx(0.5, rel=0.1)
