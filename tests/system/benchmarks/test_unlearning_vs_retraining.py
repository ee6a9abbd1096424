import json

import pytest

from benchmarks import data, paper_settings, unlearning_figures, unlearning_vs_retraining
from benchmarks.unlearning_arms import METHODS

ARMS = 13  # retraining; three mechanisms, planned and published, each with its control


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "comparison.json"
    options = ["--dataset", "digits", "--seeds", "2", "--budgets", "1", "2", "--out", str(path)]
    unlearning_vs_retraining.main(options)
    return path


def test_every_arm_is_scored_at_every_budget(written):
    figures = json.loads(written.read_text())["digits"]
    assert len(figures["rows"]) == 2 * ARMS
    assert all(len(row["accuracies"]) == 2 for row in figures["rows"])
    assert all(0 <= row["mean"] <= 1 for row in figures["rows"])


def test_a_result_says_what_was_asked(written):
    figures = json.loads(written.read_text())["digits"]
    verdicts = figures["gradient_clipping_against_retraining"]
    assert [verdict["budget_epochs"] for verdict in verdicts] == [1, 2]
    assert str(written.parent) not in written.read_text()


def test_epochs_to_an_accuracy_are_counted_from_the_longest_run():
    rows = [
        {
            "budget_epochs": budget,
            "method": "retraining",
            "settings": "planned",
            "control": False,
            "accuracies": [0.5, 0.4],
            "by_epoch": curves,
        }
        for budget, curves in ((1, [[], []]), (3, [[0.2, 0.3, 0.5], [0.2, 0.4, 0.4]]))
    ]
    reached = unlearning_figures.summary(rows, data="cifar10")["epochs_to_accuracy"]
    assert [row["epochs"] for row in reached["epochs"]] == [[2, 2, 3, 3, None]]


def test_the_plot_lies_beside_the_figures(written):
    assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_another_data_sets_figures_stay(tmp_path):
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps({"mnist": {"kept": True}}))
    assert unlearning_vs_retraining.earlier(path) == {"mnist": {"kept": True}}


def test_published_noise_is_labelled_with_what_it_gives():
    worth = {
        method: paper_settings.setting(method, data="cifar10", budget=10).epsilon
        for method in METHODS
    }
    assert worth["gradient_clipping"] == pytest.approx(6.573, abs=5e-4)
    assert worth["model_clipping"] == 1.0
    assert worth["output_perturbation"] < 1


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_digits_stand_in_where_the_data_is_missing_and_say_so(name, tmp_path, monkeypatch):
    monkeypatch.setenv("EXPUNGE_BENCH_DATA", str(tmp_path))
    pictures = data.load(name)
    assert pictures.name == "digits"
    assert name in pictures.note
    assert str(tmp_path) not in pictures.note
