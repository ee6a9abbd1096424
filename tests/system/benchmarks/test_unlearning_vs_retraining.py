import json

import pytest

from benchmarks import unlearning_vs_retraining

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
