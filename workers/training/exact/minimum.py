"""The minimum of a linear head's loss to a tolerance: the same records give the same bits.

The loss of a linear head is strongly convex, so it has one minimum, and every start leads there:

    f(W) = mean over records of the loss of W phi + weight_decay / 2 |W|^2

From zeros, full-batch L-BFGS in the coordinates U = W L, where L L^T is a bound on the Hessian
(Böhning 1992): smoothness * Phi^T Phi / n + weight_decay I. Nothing but the Lipschitz constant of
the losses' slopes is needed: these may be unbounded, as the squared loss's are, and have kinks, as
Huber's have. The first step from zeros is a ridge solution. Few more are needed, since no direction
is much steeper than 1 in these coordinates. Of many records every so many-th is enough for the
bound, as it decides how fast the minimum is found and not which. It is made of rounded features, so
that it is a product of whole numbers, which all threads may share; all else is computed in one
thread, over the records in a fixed order.

No seed and no earlier weights: a start from these would remember the records that left.

The losses are those of ``workers.training.tasks``, in a repeatable arithmetic of their own: NumPy's
float64, over the records in their order. Each is convex in the scores and never negative, and its
slopes are Lipschitz in them with the constant of the task's ``bounds``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from app.domain.errors import RunFailedError
from app.domain.tasks.built_in import (
    HUBER,
    SQUARED,
    ClassificationSpec,
    MultiLabelSpec,
    RegressionSpec,
)
from app.domain.tasks.spec import TaskSpec
from workers.training.exact.arithmetic import repeatable
from workers.training.exact.statistics import LEVELS, known_targets
from workers.training.tasks.task import TARGET, WEIGHT

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Loss(ABC):
    """The losses of some records, as functions of their scores.

    Attributes:
        targets: [n, rows], or the class of each record, [n].
        factors: of each loss, [n, rows] or [n, 1]; None: 1.
    """

    targets: NDArray[Any]
    factors: Floats | None = None

    @property
    def rows(self) -> int:
        """How many scores a record has: the rows of a head's weights."""
        return int(self.targets.shape[1])

    @abstractmethod
    def at(self, scores: Floats, records: slice) -> tuple[float, Floats]:
        """Return the sum of some records' losses, and its slopes in the scores [n, rows]."""

    def _weighted(self, losses: Floats, slopes: Floats, records: slice) -> tuple[float, Floats]:
        if self.factors is None:
            return float(losses.sum()), slopes
        some = self.factors if len(self.factors) == 1 else self.factors[records]
        return float((losses * some).sum()), slopes * some


class Logistic(Loss):
    """log(1 + e^z) - y z for each score and target y from 0 to 1; two classes have one."""

    def at(self, scores: Floats, records: slice) -> tuple[float, Floats]:
        """Return the sum of the losses, and its slopes."""
        y = self.targets[records]
        tail = np.exp(-np.abs(scores))
        losses = np.maximum(scores, 0.0) + np.log1p(tail) - y * scores
        shares = np.where(scores >= 0, 1.0, tail) / (1.0 + tail)
        return self._weighted(losses, shares - y, records)


@dataclass(frozen=True, eq=False, kw_only=True)
class Softmax(Loss):
    """The cross-entropy of classes.

    Attributes:
        classes: 3 or more.
        smoothing: the share of the target that is spread over all classes.
    """

    classes: int
    smoothing: float = 0.0

    @property
    def rows(self) -> int:
        """The number of classes."""
        return self.classes

    def at(self, scores: Floats, records: slice) -> tuple[float, Floats]:
        """Return the sum of the losses, and its slopes."""
        labels = self.targets[records]
        every = np.arange(len(labels))
        shifted = scores - scores.max(axis=1, keepdims=True)
        shares = np.exp(shifted)
        totals = shares.sum(axis=1)
        wanted = (1.0 - self.smoothing) * shifted[every, labels]
        if self.smoothing:
            wanted += self.smoothing * shifted.mean(axis=1)
        losses = np.log(totals) - wanted
        shares /= totals[:, None]
        shares -= self.smoothing / self.classes
        shares[every, labels] -= 1.0 - self.smoothing
        return self._weighted(losses[:, None], shares, records)


@dataclass(frozen=True, eq=False, kw_only=True)
class Errors(Loss):
    """Half the squared error for each score, or Huber's loss of it.

    Attributes:
        threshold: the error above which the loss grows linearly; None: it never does.
    """

    threshold: float | None = None

    def at(self, scores: Floats, records: slice) -> tuple[float, Floats]:
        """Return the sum of the losses, and its slopes."""
        errors = scores - self.targets[records]
        if self.threshold is None:
            return self._weighted(np.square(errors) / 2, errors, records)
        slopes = np.clip(errors, -self.threshold, self.threshold)
        return self._weighted(slopes * (errors - slopes / 2), slopes, records)


def loss_of(task: TaskSpec, tensors: Mapping[str, NDArray[Any]]) -> Loss:
    """Return the loss of a task's encoded records.

    Raises:
        RunFailedError: a linear head does not learn such a task.
    """
    targets = tensors[TARGET]
    factors = tensors[WEIGHT].astype(np.float64)[:, None] if WEIGHT in tensors else None
    known = known_targets(targets)
    if not known.all():  # their losses are 0
        targets = np.where(known if targets.ndim == 1 else known[:, None], targets, 0)
        factors = known[:, None].astype(np.float64) * (1.0 if factors is None else factors)
    match task:
        case ClassificationSpec() | MultiLabelSpec():
            smoothing, weights = task.label_smoothing, np.array(task.class_weights)
            if task.class_weights:
                of_labels = isinstance(task, MultiLabelSpec)
                own = weights[None, :] if of_labels else weights[targets][:, None]
                factors = own * (1.0 if factors is None else factors)
            if isinstance(task, MultiLabelSpec):
                return Logistic(targets=_smoothed(targets, smoothing), factors=factors)
            if task.classes > 2:
                return Softmax(
                    targets=targets, factors=factors, classes=task.classes, smoothing=smoothing
                )
            return Logistic(targets=_smoothed(targets[:, None], smoothing), factors=factors)
        case RegressionSpec() if task.loss in (SQUARED, HUBER):
            threshold = task.threshold if task.loss == HUBER else None
            return Errors(targets=targets.astype(np.float64), factors=factors, threshold=threshold)
    raise RunFailedError(f"a linear_head has no minimum for {task.name}")


def _smoothed(targets: NDArray[Any], smoothing: float) -> Floats:
    smoothed: Floats = targets.astype(np.float64) * (1.0 - smoothing) + smoothing / 2
    return smoothed


_MEMORY: Final = 20
_LINE_SEARCH: Final = 40
_ROWS_AT_ONCE: Final = 256  # fit into a processor's cache, so that a pass reads them once
_BOUND_RECORDS: Final = 4  # for the bound, at least so many for each feature
_BOUND_ROWS: Final = 4096  # and in all, as far as there are so many


@dataclass(frozen=True)
class Minimum:
    """Where training stopped.

    Attributes:
        weight: float64 [rows, size].
        evaluations: passes over the records.
    """

    weight: Floats
    evaluations: int


def minimise(
    features: Floats,
    loss: Loss,
    *,
    weight_decay: float,
    smoothness: float,
    tolerance: float,
    most_evaluations: int,
) -> Minimum:
    """Return weights where the gradient of f has at most the norm ``tolerance``.

    Args:
        features: phi of each record, of norm at most 1, [n, size]; their order counts.
        loss: of the same records.
        weight_decay: above 0.
        smoothness: of one record's loss.
        tolerance: above 0.
        most_evaluations: after which the attempt is given up.

    Raises:
        RunFailedError: there are no records, or the tolerance was not reached.
    """
    if len(features) == 0:
        raise RunFailedError("no record is left to learn from")
    factor = _factor_of_bound(features, smoothness=smoothness, weight_decay=weight_decay)
    search = _Search(features, loss, factor, weight_decay=weight_decay, tolerance=tolerance)
    with repeatable():
        minimize(
            search.value_and_gradient,
            np.zeros(loss.rows * features.shape[1]),
            jac=True,
            method="L-BFGS-B",
            callback=search.stop_when_met,
            options={
                "maxcor": _MEMORY,
                "maxls": _LINE_SEARCH,
                "maxfun": most_evaluations,
                "maxiter": most_evaluations,
                "ftol": 0.0,
                "gtol": 0.0,
            },
        )
    if search.met is None:
        raise RunFailedError(
            f"training did not reach a gradient of {tolerance:g} in {most_evaluations} passes: use "
            "a larger tolerance or weight_decay"
        )
    return Minimum(search.met, search.evaluations)


class _Search:
    """f in the coordinates of the search; it ends at the first point that meets."""

    def __init__(
        self, features: Floats, loss: Loss, factor: Floats, *, weight_decay: float, tolerance: float
    ) -> None:
        self._features, self._loss = features, loss
        self._factor = factor
        self._weight_decay, self._tolerance = weight_decay, tolerance
        self.evaluations = 0
        self.met: Floats | None = None

    def value_and_gradient(self, position: Floats) -> tuple[float, Floats]:
        rows = position.reshape(self._loss.rows, -1).T
        outer = solve_triangular(self._factor, rows, lower=True, trans="T", check_finite=False)
        weight = np.ascontiguousarray(outer.T)
        value, gradient = self._at(weight)
        self.evaluations += 1
        if self.met is None and float(np.sqrt(np.square(gradient).sum())) <= self._tolerance:
            self.met = weight
        inner = solve_triangular(self._factor, gradient.T, lower=True, check_finite=False)
        return value, np.ascontiguousarray(inner.T).reshape(-1)

    def stop_when_met(self, _position: Floats) -> None:
        if self.met is not None:
            raise StopIteration

    def _at(self, weight: Floats) -> tuple[float, Floats]:
        """Return f and its gradient, [rows, size], chunk after chunk in the records' order."""
        n = len(self._features)
        value, gradient = 0.0, np.zeros_like(weight.T)
        for start in range(0, n, _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            features = self._features[some]
            losses, slopes = self._loss.at(features @ weight.T, some)
            value += losses
            gradient += features.T @ slopes
        value = value / n + self._weight_decay / 2 * float(np.square(weight).sum())
        return value, gradient.T / n + self._weight_decay * weight


def _factor_of_bound(features: Floats, *, smoothness: float, weight_decay: float) -> Floats:
    """Return the lower Cholesky factor of the bound on the Hessian."""
    size = features.shape[1]
    some = features[:: max(1, len(features) // max(_BOUND_ROWS, _BOUND_RECORDS * size))]
    bound = np.zeros((size, size))
    for start in range(0, len(some), _BOUND_ROWS):
        rounded = some[start : start + _BOUND_ROWS] * (LEVELS - 1)
        np.rint(rounded, out=rounded)
        bound += rounded.T @ rounded  # exact, as sums of so few stay below 2^53
    bound *= smoothness / len(some) / (LEVELS - 1) ** 2
    bound[np.diag_indices_from(bound)] += weight_decay
    with repeatable():
        factor: Floats = cholesky(bound, lower=True, overwrite_a=True, check_finite=False)
    return factor
