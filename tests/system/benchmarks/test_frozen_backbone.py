"""The head on a frozen backbone, on small digits."""

import json

import pytest

from benchmarks import frozen_backbone


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "frozen.json"
    options = ["--quick", "--seeds", "2", "--passes", "2", "--original-epochs", "2"]
    frozen_backbone.main([*options, "--budgets", "2", "3", "--results", str(path)])
    assert path.with_suffix(".png").stat().st_size > 0
    return json.loads(path.read_text())


def test_each_mechanism_is_run_at_each_epsilon_and_budget_and_from_a_random_start(written):
    rows = written["rows"]
    kinds = {(row["method"], row["epsilon"], row["control"]) for row in rows}
    assert len(kinds) == 1 + 2 * (len(frozen_backbone.EPSILONS) + 1)
    assert len(rows) == 2 * len(kinds)
    assert all(len(row["accuracies"]) == 2 for row in (*rows, *written["beside"]))


def test_exact_heads_beat_members_that_are_left_out_and_dp_sgd(written):
    scores = {row["method"]: row["mean"] for row in written["beside"]}
    exact = min(scores["ridge head"], scores["softmax head"])
    assert exact > 0.85
    assert exact > max(scores[name] for name in scores if "out" in name or "DP-SGD" in name)


def test_the_table_has_what_needs_no_budget_in_its_last_column(written):
    text = frozen_backbone.table(written)
    assert text.startswith("| method, after so many epochs | 2 | 3 |")
    assert "| ridge head |  | " in text
    assert "| gradient clipping, ε = 0.1 | " in text
