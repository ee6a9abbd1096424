import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

from benchmarks import unlearning_vs_retraining as comparison
from benchmarks.data import load, network_of
from workers.training.networks.network import Network

CPU = torch.device("cpu")

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
    assert len(starts) == 2
    assert len(figures["rows"]) == 3 * (7 + 3)  # each curve begins before it is tuned
    assert [row["budget_epochs"] for row in figures["rows"][:3]] == [0, 2, 3]
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


@pytest.fixture(scope="module")
def pictures():
    return load("digits")


def case(pictures, schedule="constant", rate=0.1):
    network = Network(lambda: network_of(pictures.architecture, pictures.train), device=CPU)
    recipe = comparison.recipe_of(rate, 0.0, schedule)
    own = comparison.starts_of("digits")["own"]
    return comparison.Case(pictures, recipe, 0, own, network.tensors())


@pytest.mark.parametrize("control", [False, True])
def test_one_training_is_scored_at_every_budget_its_noisy_steps_included(
    pictures, control, monkeypatch
):
    trained, train = [], Network.train

    def spied(*given, **how):
        trained.append(train(*given, **how))
        return trained[-1]

    monkeypatch.setattr(Network, "train", spied)
    arm = comparison.Arm("model_clipping", control=control)
    rows = case(pictures).run(arm, [1, 2.5, 60])
    per_epoch, noisy = -(-1294 // 128), rows[0]["noisy_steps"]
    assert noisy > 0
    assert trained == [60 * per_epoch - noisy]
    assert [row["budget_epochs"] for row in rows] == [noisy / per_epoch, 1, 2.5, 60]
    assert rows[0]["accuracy"] < 0.3
    assert rows[-1]["accuracy"] > 0.5


def test_figure_2_is_run_as_published(pictures):
    rows = [case(pictures).run(arm, [3, 4]) for arm in comparison.arms(["own"], figure_2=True)][-2:]
    for row in (row for run in rows for row in run):
        assert row["noisy_steps"] == 30
        assert row["end_std"] == pytest.approx(0.25 / (1 - 0.5**2) ** 0.5)


def test_the_table_has_what_the_random_start_does_and_epochs_to_reach_an_accuracy():
    def rows(method, curves, *, control=False):
        return [
            {
                **asdict(comparison.Arm(method, control=control)),
                "budget_epochs": budget,
                "accuracies": list(accuracies),
                "mean": sum(accuracies) / 2,
                "standard_error": 0.01,
            }
            for budget, accuracies in zip((0, 1, 2, 3), curves, strict=True)
        ]

    found = [
        *rows("retraining", [(0.1, 0.1), (0.3, 0.2), (0.2, 0.3), (0.4, 0.4)]),
        *rows("model_clipping", [(0.1, 0.1), (0.2, 0.2), (0.3, 0.3), (0.42, 0.42)]),
        *rows("model_clipping", [(0.1, 0.1), (0.2, 0.2), (0.3, 0.3), (0.44, 0.44)], control=True),
    ]
    document = {"some": {"rows": found, "learning_rates": {"own": 1}, "schedule": "constant"}}
    lines = [line.split(" | ") for line in comparison.table(document).splitlines()[2:]]
    assert [line[0] for line in lines] == [
        "| some, after 3 epochs",
        "| epochs to 35 %",
        "| epochs to 40 %",
    ]
    assert lines[0][2:] == ["40.0 ± 1.0", "", "", "42.0 ± 1.0 (44.0 ± 1.0) |"]
    assert lines[1][2] == "2.5 ± 0.0"


def test_halved_pictures_are_averages(pictures):
    small = comparison.halved(pictures.train)
    assert small.inputs.shape[1:] == (4, 4)
    square = pictures.train.inputs[0, 2:4, 4:6].float()
    assert int(small.inputs[0, 1, 2]) == round(float(square.mean()))
