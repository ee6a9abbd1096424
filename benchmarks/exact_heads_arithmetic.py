"""What exact heads and tracked release cost and score on features, without a service around them.

Each runs the code of the service's runs. Seconds are those of the arithmetic alone, beside those of
one float64 matrix product of the features with themselves on all threads, taken in the same minute.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import torch

from app.domain.heads import linear_head
from app.domain.schema import FeatureSchema
from app.domain.tasks.classification import ClassificationSpec
from app.planning.mechanisms.exact_training import ExactTraining
from benchmarks.convex_case import Case
from benchmarks.convex_methods import Method, Target, tracked
from benchmarks.convex_runs import Trainings, answer
from benchmarks.data import CLASSES
from benchmarks.harness import require, seconds_of
from benchmarks.public_features import PublicFeatures
from workers.mechanisms.exact_training import minimum, scaled
from workers.training.evaluate import evaluate
from workers.training.exact import ridge
from workers.training.exact.statistics import Statistics, one_hot, quantised
from workers.training.examples import classified
from workers.training.networks.linear_head import LinearHead
from workers.training.networks.ridge_head import RidgeHead
from workers.training.tasks.classification import CLASSIFICATION

TOLERANCE: Final = 7e-4
CONVERGED: Final = 1e-5
EPSILON: Final = 1.0
_SINGLE_REQUESTS: Final = 5  # that are timed one by one


@dataclass(frozen=True)
class Row:
    """What one head answered.

    Attributes:
        head: ``ridge``, ``softmax`` or ``tracked``.
        features: the group's name.
        forgotten: records in all.
        requests: that named them, of equal size.
        accuracy: on the test records, afterwards.
        seconds: of the arithmetic of one request, the median.
        products: the same, in matrix products; 0 where no product was taken.
        gradients: of one request, the mean.
        note: what else a reader should know.
    """

    head: str
    features: str
    forgotten: int
    requests: int
    accuracy: float
    seconds: float
    products: float
    gradients: float
    note: str = ""


def product_seconds(features: PublicFeatures, *, repeats: int = 2) -> float:
    """Return how long the product of float64 features with themselves takes, the shortest time."""
    numbers = features.train.inputs.numpy().astype(np.float64)
    return min(seconds_of(lambda: numbers.T @ numbers)[0] for _ in range(repeats))


class RidgeRows:
    """A ridge head's answers.

    Args:
        features: of all records; those that leave are the first ones.
        group: the features' name.
        regularisation: None chooses it anew for each release.
        product_s: of one matrix product.
    """

    def __init__(
        self,
        features: PublicFeatures,
        group: str,
        *,
        regularisation: float | None,
        product_s: float,
    ) -> None:
        schema = FeatureSchema(
            shape=tuple(features.train.inputs.shape[1:]),
            dtype="float32",
            offset=0.0,
            scale=1.0,
            classes=CLASSES,
        )
        self._features = features
        self._group = group
        self._regularisation = regularisation
        self._product_s = product_s
        self._numbers = quantised(features.train.inputs.numpy(), schema, features.feature_range)
        self._targets = one_hot(features.train.target.numpy(), CLASSES)
        self._sums = self._over(slice(None))
        self._fresh = {0: self._sums}

    def row(self, forgotten: int, *, requests: int) -> Row:
        """Return the answers to ``requests`` equal requests, which are carried out one by one.

        The sums are compared with those of the retained records; most requests of many leave the
        solution to the last.

        Raises:
            RuntimeError: sums are not those of a fresh start.
        """
        sums = Statistics.from_named(self._sums.named())
        assert sums is not None
        seconds = list[float]()
        solution = ridge.solve(sums, regularisation=self._regularisation)
        per_request = forgotten // requests if requests else 0
        for number in range(requests):
            rows = slice(number * per_request, (number + 1) * per_request)
            started = time.perf_counter()
            sums.subtract(self._over(rows))
            if number < _SINGLE_REQUESTS or number == requests - 1:
                solution = ridge.solve(sums, regularisation=self._regularisation)
                seconds.append(time.perf_counter() - started)
        self._require_fresh(sums, solution, forgotten)
        spent = median(seconds) if seconds else 0.0
        return Row(
            head="ridge",
            features=self._group,
            forgotten=forgotten,
            requests=requests,
            accuracy=self._accuracy(solution),
            seconds=spent,
            products=spent / self._product_s,
            gradients=0.0,
            note=f"regularisation {solution.regularisation:g}",
        )

    def _require_fresh(self, sums: Statistics, solution: ridge.Solution, forgotten: int) -> None:
        if forgotten not in self._fresh:
            self._fresh[forgotten] = self._over(slice(forgotten, None))
        fresh = self._fresh[forgotten]
        same = all(
            np.array_equal(left, right)
            for left, right in zip(sums.named().values(), fresh.named().values(), strict=True)
        )
        again = ridge.solve(fresh, regularisation=self._regularisation)
        same = same and again.weight.tobytes() == solution.weight.tobytes()
        require(same, "forgetting leaves what a fresh start gives")

    def _over(self, rows: slice) -> Statistics:
        return Statistics.over(self._numbers[rows], self._targets[rows])

    def _accuracy(self, solution: ridge.Solution) -> float:
        """Return the accuracy of the head as it would be released."""
        scale = 2**15 / self._features.feature_range
        head = RidgeHead(
            self._numbers.shape[1], CLASSES, feature_range=self._features.feature_range
        )
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(solution.weight * scale))
            head.bias.copy_(torch.from_numpy(solution.bias))
        return evaluate(head, CLASSIFICATION, self._features.test).score


def softmax_row(
    features: PublicFeatures,
    group: str,
    forgotten: int,
    *,
    weight_decay: float,
    product_s: float,
    tolerance: float = TOLERANCE,
) -> Row:
    """Return a softmax head that is trained anew on what is left, whatever the requests were."""
    mechanism = ExactTraining(regularisation=weight_decay, tolerance=tolerance)
    left = features.train.select(np.arange(forgotten, len(features.train)))
    head = _linear_head(features)
    seconds, found = seconds_of(
        lambda: minimum(mechanism, head, left, ClassificationSpec(classes=CLASSES))
    )
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(found.weight))
    return Row(
        head="softmax",
        features=group,
        forgotten=forgotten,
        requests=1 if forgotten else 0,
        accuracy=evaluate(head, CLASSIFICATION, features.test).score,
        seconds=seconds,
        products=seconds / product_s,
        gradients=float(found.evaluations * len(left)),
        note=f"{found.evaluations} passes to a gradient of {tolerance:g}",
    )


def tracked_rows(
    features: PublicFeatures,
    group: str,
    settings: Sequence[tuple[int, int]],
    *,
    weight_decay: float,
    noise_std: float,
    epochs: int,
    batch_size: int,
    product_s: float,
) -> Iterator[Row]:
    """Yield tracked release after so many (forgotten, requests); of many the last one is run."""
    case = _case(features, weight_decay=weight_decay, batch_size=batch_size)
    method = Method(
        "tracked release", "ours", batch_size, plan=tracked(noise_std), simulated_last=1
    )
    target = Target(EPSILON, case.delta)
    trainings = Trainings(case, seed=0, epochs=epochs)
    spent, start = seconds_of(lambda: trainings.start(method, target))
    for forgotten, requests in settings:
        count = max(1, requests)
        each = forgotten // count
        outcome = answer(case, method, target, start, requests=count, records=each, seed=0)
        gradients, seconds = float(outcome.training_gradients), spent
        if requests:
            gradients = outcome.gradients / requests
            seconds = spent * gradients / outcome.training_gradients
        yield Row(
            head="tracked release",
            features=group,
            forgotten=forgotten,
            requests=requests,
            accuracy=outcome.accuracies[-1],
            seconds=seconds,
            products=seconds / product_s,
            gradients=gradients,
            note=f"epsilon {EPSILON:g}, delta 1/n, noise {noise_std:g}",
        )


def _linear_head(features: PublicFeatures) -> LinearHead:
    size = features.train.inputs.shape[1]
    return LinearHead(size, CLASSES, rows=CLASSES, feature_norm=None, bias=linear_head.DEFAULT_BIAS)


def _case(features: PublicFeatures, *, weight_decay: float, batch_size: int) -> Case:
    head = _linear_head(features)
    used = len(features.train) // batch_size * batch_size
    train, test = (
        classified(
            torch.from_numpy(scaled(head, part)[0]).float() * (1 - 2.0**-20),
            part.target,
        )
        for part in (features.train.select(np.arange(used)), features.test)
    )
    return Case("features", classes=CLASSES, weight_decay=weight_decay, train=train, test=test)
