"""What exact heads on public features cost and score: ``python -m benchmarks.exact_heads``.

CIFAR-10 as EfficientNet-Lite0 sees it (``benchmarks.public_features``; its features are computed
once and cached, which takes a quarter of an hour on one core). A ridge head, a softmax head that is
trained to a tolerance, and tracked release forget 0, 100 and 5,000 records. Each runs the code of
the service's runs. Seconds are those of the arithmetic alone. ``--quick`` runs on small digits, in
seconds.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks import harness
from benchmarks import public_features as public
from benchmarks.convex import Case, seen_by, service_head, softmax_minimum
from benchmarks.convex_runs import Method, Target, Trainings, answer, tracked
from benchmarks.data import CLASSES
from benchmarks.harness import require, seconds_of
from workers.training.exact import ridge
from workers.training.exact.statistics import Statistics

TOLERANCE: Final = 7e-4
CONVERGED: Final = 1e-5
REGULARISATION: Final = 0.01
EPSILON: Final = 1.0

Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much is run: the defaults are the benchmark, ``QUICK`` is a smoke test."""

    group: str = "and averages of four blocks"
    forgotten: tuple[int, ...] = (100, 5000)
    weight_decay: float = 3e-6
    tracked_weight_decay: float = 3e-3
    tracked_noise_std: float = 0.1
    tracked_epochs: int = 3
    tracked_batch_size: int = 128


QUICK: Final = Scale(
    group="all pixels",
    forgotten=(20, 100),
    weight_decay=1e-3,
    tracked_weight_decay=1e-2,
    tracked_noise_std=0.5,
    tracked_batch_size=32,
)


class Heads:
    """The answers of each kind of head on one group of features."""

    def __init__(self, features: public.PublicFeatures, group: str, scale: Scale) -> None:
        self._group, self._scale = group, scale
        self._train, self._test = features.train, features.test
        self._all = public.RidgeSums(
            self._train.inputs.numpy(), self._train.target.numpy(), features.feature_range
        )
        self._sums = self._all.over(slice(None))

    def ridge_row(self, forgotten: int) -> Row:
        """Return a ridge head's answer to a request; its sums are those of a fresh start."""
        sums = Statistics.from_named(self._sums.named())
        assert sums is not None

        def forget() -> ridge.Solution:
            sums.subtract(self._all.over(slice(forgotten)))
            return _solved(sums)

        spent, solution = seconds_of(forget) if forgotten else (0.0, _solved(sums))
        fresh = self._all.over(slice(forgotten, None))
        pairs = zip(sums.named().values(), fresh.named().values(), strict=True)
        same = all(np.array_equal(left, right) for left, right in pairs)
        same = same and _solved(fresh).weight.tobytes() == solution.weight.tobytes()
        require(same, "forgetting leaves what a fresh start gives")
        scored = (self._all.accuracy(solution, self._test), spent)
        return self._row("ridge", forgotten, *scored, f"regularisation {REGULARISATION}")

    def softmax_row(self, forgotten: int, tolerance: float = TOLERANCE) -> Row:
        """Return a softmax head that is trained anew on what is left, whatever was asked."""
        left = self._train.select(np.arange(forgotten, len(self._train)))
        head = service_head(left.inputs.shape[1], CLASSES)
        how = {"regularisation": self._scale.weight_decay, "tolerance": tolerance}
        found = softmax_minimum(head, CLASSES, left, self._test, **how)
        note = f"{found.passes} passes to a gradient of {tolerance:g}"
        scored = (found.evaluation.score, found.seconds)
        return self._row("softmax", forgotten, *scored, note)

    def tracked_rows(self) -> Iterator[Row]:
        """Yield tracked release before a request, and after the largest."""
        scale, train = self._scale, self._train
        batch, head = scale.tracked_batch_size, service_head(train.inputs.shape[1], CLASSES)
        parts = (train.select(np.arange(len(train) // batch * batch)), self._test)
        seen = (seen_by(head, part) for part in parts)
        case = Case("features", CLASSES, scale.tracked_weight_decay, *seen)
        method = Method("ours", batch, plan=tracked(scale.tracked_noise_std))
        target = Target(EPSILON, case.delta)
        trainings = Trainings(case, seed=0, epochs=scale.tracked_epochs)
        spent, start = seconds_of(lambda: trainings.start(method))
        note = f"epsilon {EPSILON:g}, delta 1/n, noise {scale.tracked_noise_std:g}"
        for forgotten in (0, scale.forgotten[-1]):
            one = {"requests": 1, "records": forgotten, "seed": 0}
            outcome = answer(case, method, target, start, **one)
            share = outcome.gradients / outcome.training_gradients if forgotten else 1.0
            scored = (outcome.accuracies[-1], spent * share)
            yield self._row("tracked release", forgotten, *scored, note)

    def _row(self, head: str, forgotten: int, accuracy: float, seconds: float, note: str) -> Row:
        row = {"head": head, "features": self._group, "forgotten": forgotten}
        row |= {"requests": int(forgotten > 0), "accuracy": accuracy, "seconds": seconds}
        return row | {"note": note}


def _solved(sums: Statistics) -> ridge.Solution:
    return ridge.solve(sums, regularisation=REGULARISATION)


def rows_of(features: public.PublicFeatures, scale: Scale) -> Iterator[Row]:
    """Yield the rows of the group that most is measured on, then fewer and more features."""
    heads = Heads(features.of_group(scale.group), scale.group, scale)
    for forgotten in (0, *scale.forgotten):
        yield heads.ridge_row(forgotten)
    for forgotten in (0, *scale.forgotten):
        yield heads.softmax_row(forgotten)
    yield heads.softmax_row(0, CONVERGED)
    yield from heads.tracked_rows()
    del heads
    for group in features.groups:
        if group != scale.group:
            one = Heads(features.of_group(group), group, scale)
            yield one.ridge_row(0)
            yield one.softmax_row(0)
            del one


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield everything that is measured."""
    features = public.pixels_of_digits() if given.quick else public.cifar10(given.cache)
    spent, rows = seconds_of(lambda: list(rows_of(features, QUICK if given.quick else Scale())))
    yield {
        "data": features.pictures.name,
        "note": features.pictures.note,
        "records": len(features.train),
        "tested": len(features.test),
        "features": dict(features.groups),
        "threads": torch.get_num_threads(),
        "tolerance": TOLERANCE,
        "rows": rows,
        "wall_s": round(spent, 1),
    }


def table(document: dict[str, Any]) -> str:
    """Return what one request takes, in Markdown."""
    rows = (
        (
            f"{row['head']}, {row['note'].partition(' to ')[0]}",
            row["features"].removeprefix("and averages of ").removeprefix("and "),
            f"{row['forgotten']:,}",
            f"{row['accuracy']:.1%}",
            f"{row['seconds']:.2f}",
        )
        for row in document["rows"]
    )
    return harness.table("head | features | forgotten | accuracy | seconds", rows)


if __name__ == "__main__":
    given = {
        "--cache": {"type": Path, "default": public.default_cache(), "help": "of the features"},
        "--quick": {"action": "store_true", "help": "small digits, in seconds"},
    }
    harness.main("exact_heads", __doc__, run, options=given, table=table)
