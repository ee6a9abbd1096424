"""What ``expunge start`` measures before anything is sent, and what it trains by that."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from app.cli.proposing import proposal_of
from app.cli.quoting import Quote, _folds, _seconds, costs, quoted, to_train
from app.domain.schema import TableSchema
from app.ledger.costs import Measured
from app.registry.datasets.columns.proposal import Choices
from app.registry.datasets.columns.reading import source_of


def test_what_ran_before_tells_better_what_a_run_of_its_size_takes() -> None:
    timed = [(1000.0, 1.0), (4000.0, 2.5)]
    earlier = [Measured("boosting", unlearned, 50_000.0, 4.0, 0.5) for unlearned in (False, True)]

    def seconds(gradients: float, mechanism: str = "boosting", known: bool = True) -> float:
        runs = earlier if known else []
        return _seconds(mechanism, timed, gradients, runs, width=10)

    assert seconds(10_000.0) == pytest.approx(0.5 + 8.0)
    assert seconds(10_000.0, "retraining") == pytest.approx(0.5 + 2.5 + 3.0)
    assert seconds(100_000.0) == pytest.approx(0.5 + 2.5 + 48.0)  # of another size
    assert seconds(10_000.0, known=False) == pytest.approx(1.0 + 2.5 + 3.0)


def test_each_row_of_a_small_table_is_measured_on_once_and_nobody_is_in_two_parts() -> None:
    owners = [f"p{place // 3}" for place in range(600)] + [None] * 40
    order, parts = _folds(pa.array(owners))
    assert sorted(order) == [*range(640)]
    assert [first for first, _ in parts[1:]] == [end for _, end in parts[:-1]]
    assert (parts[0][0], parts[-1][1], len(parts)) == (0, 640, 5)
    assert all(100 < end - first < 160 for first, end in parts)
    held = [{owners[row] for row in order[first:end]} - {None} for first, end in parts]
    assert sum(map(len, held)) == 200


def test_of_a_large_table_the_last_persons_of_a_sample_are_measured_on() -> None:
    owners = np.repeat(np.arange(30_000), 4)
    order, parts = _folds(pa.array(owners))
    ((first, end),) = parts
    assert end == len(order) == len(set(order)) < len(owners)
    assert end - first == pytest.approx(end / 10, abs=4)
    assert not {*owners[order[:first]]} & {*owners[order[first:]]}


@pytest.mark.parametrize(
    ("metric", "scores", "trained"),
    [("accuracy", (0.8, 0.9), "exact_training"), ("mae", (0.8, 0.9), "boosting")],
)
def test_what_was_best_on_what_it_had_not_read_is_trained(
    metric: str, scores: tuple[float, float], trained: str
) -> None:
    ways = ("boosting", "exact_training", "retraining")
    quotes = {
        each: Quote(1.0, metric, score, (score,), {}, {})
        for each, score in zip(ways, (*scores, 0.85), strict=True)
    }
    assert to_train(quotes) == trained
    assert to_train({"boosting": quotes["boosting"]}) == "boosting"


@pytest.mark.parametrize(
    ("parts", "trained"),
    [((0.92, 0.93, 0.91), "boosting"), ((0.99, 0.83, 0.91), "exact_training")],
)
def test_trees_that_are_better_by_chance_alone_are_not_trained(
    parts: tuple[float, ...], trained: str
) -> None:
    trees = Quote(1.0, "accuracy", sum(parts) / 3, parts, {}, {})
    linear = Quote(1.0, "accuracy", 0.9, (0.9, 0.9, 0.9), {}, {})
    assert to_train({"boosting": trees, "exact_training": linear}) == trained


@pytest.mark.parametrize(("long_s", "told"), [(0.0, True), (600.0, False)])
def test_members_that_are_left_out_are_quoted_where_trees_take_long(
    long_s: float, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.quoting._LONG_S", long_s)
    random = np.random.default_rng(0)
    x, z = random.normal(size=(2, 9600))
    table = pa.table({"id": np.arange(9600), "x": x, "z": z, "y": np.abs(x) + z})
    schema = TableSchema.of(dict.fromkeys("xzy", "float64"), record_id="id")
    source = source_of(table, "the table")
    task = replace(proposal_of(schema, Choices(target="y"), source).task, loss="squared")
    quotes = quoted(source, schema, task, [])
    whole, members = quotes["boosting"], quotes["sharded_retraining"]
    assert members.architecture["members"] == 8
    assert 0 < whole.score < members.score < 0.1  # each has read an eighth of the rows
    said = "\n".join(costs(quotes))
    assert ("8 of trees     exact: one is left out at once, grown by night in " in said) == told
    assert (f"mean absolute error about {members.score:.3g}" in said) == told
    assert to_train(quotes) == "boosting"


@pytest.mark.parametrize("rows", [400, 9600])
def test_a_head_has_splines_where_these_were_better(rows: int) -> None:
    random = np.random.default_rng(0)
    x, z = random.normal(size=(2, rows))
    flag = random.integers(2, size=rows)
    columns = {"id": np.arange(rows), "x": x, "z": z, "flag": flag}
    kinds = {"x": "float64", "z": "float64", "flag": "int64", "y": "float64"}
    schema = TableSchema.of(kinds, record_id="id")

    def heads(target: np.ndarray) -> tuple[float, list[dict], str]:
        source = source_of(pa.table(columns | {"y": target}), "the table")
        task = proposal_of(schema, Choices(target="y"), source).task
        quotes = quoted(source, schema, replace(task, loss="squared"), [])
        head = quotes["exact_training"]
        return head.score, head.task["inputs"], "\n".join(costs(quotes))

    error, inputs, told = heads(np.abs(x) + z + random.normal(size=rows) / 20)
    assert error < 0.15
    assert [len(each.get("knots", ())) for each in inputs] == [0, 5, 5]  # the flag first
    assert inputs[1]["knots"] == pytest.approx([-3, -1.5, 0, 1.5, 3], abs=0.5)
    assert ", by splines" in told
    _, inputs, told = heads(x + z + flag)
    assert "by splines" not in told
    assert not any("knots" in each for each in inputs)
