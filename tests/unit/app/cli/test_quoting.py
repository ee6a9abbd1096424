"""What ``expunge start`` measures before anything is sent, and what it trains by that."""

import numpy as np
import pyarrow as pa
import pytest

from app.cli.quoting import Quote, _folds, _seconds, to_train
from app.ledger.costs import Measured


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
    owners = np.repeat(np.arange(3000), 4)
    order, parts = _folds(pa.array(owners))
    ((first, end),) = parts
    assert end == len(order) == len(set(order)) < len(owners)
    assert end - first == pytest.approx(end / 10, abs=4)
    assert not {*owners[order[:first]]} & {*owners[order[first:]]}


@pytest.mark.parametrize(
    ("metric", "scores", "rows", "trained"),
    [
        ("accuracy", (0.8, 0.9), 500, ["exact_training"]),
        ("mae", (0.8, 0.9), 500, ["boosting"]),
        ("mae", (0.8, 0.9), 50_000, ["boosting", "exact_training"]),
        (None, (None, None), 500, ["boosting", "exact_training"]),
    ],
)
def test_of_a_small_table_the_best_is_trained_and_of_others_both(
    metric: str | None, scores: tuple[float | None, ...], rows: int, trained: list[str]
) -> None:
    ways = ("boosting", "exact_training", "retraining")
    quotes = {
        each: Quote(1.0, metric, score, () if score is None else (score, score), {})
        for each, score in zip(ways, (*scores, 0.85), strict=True)
    }
    assert to_train(quotes, rows=rows) == trained
    assert to_train({"boosting": quotes["boosting"]}, rows=rows) == ["boosting"]


@pytest.mark.parametrize(
    ("parts", "trained"),
    [((0.92, 0.93, 0.91), "boosting"), ((0.99, 0.83, 0.91), "exact_training")],
)
def test_trees_that_are_better_by_chance_alone_are_not_trained(
    parts: tuple[float, ...], trained: str
) -> None:
    trees = Quote(1.0, "accuracy", sum(parts) / 3, parts, {})
    linear = Quote(1.0, "accuracy", 0.9, (0.9, 0.9, 0.9), {})
    assert to_train({"boosting": trees, "exact_training": linear}, rows=500) == [trained]
