import json
from argparse import Namespace

import pytest

from benchmarks import data, unlearning_vs_retraining

ARMS = 7  # retraining; three mechanisms, each with its control


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "comparison.json"
    options = ["--dataset", "digits", "--seeds", "2", "--budgets", "1", "2", "--results", str(path)]
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


def test_the_plot_lies_beside_the_figures(written):
    assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_another_data_sets_figures_stay(tmp_path):
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps({"mnist": {"kept": True}}))
    given = Namespace(results=path, dataset=["digits"], budgets=[1], seeds=1)
    assert next(unlearning_vs_retraining.run(given))["mnist"] == {"kept": True}


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_digits_stand_in_where_the_data_is_missing_and_say_so(name, tmp_path, monkeypatch):
    monkeypatch.setenv("EXPUNGE_BENCH_DATA", str(tmp_path))
    pictures = data.load(name)
    assert pictures.name == "digits"
    assert name in pictures.note
    assert str(tmp_path) not in pictures.note
