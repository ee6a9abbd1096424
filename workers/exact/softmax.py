"""Logistic and softmax regression to a stated tolerance: the same records give the same bits.

The loss of a linear head is strongly convex, so it has one minimum, and every start leads there:

    f(W) = mean over records of the cross-entropy of W phi + weight_decay / 2 |W|^2

From zeros, full-batch L-BFGS in the coordinates U = W L, where L L^T is a bound on the Hessian
(Böhning 1992): smoothness * Phi^T Phi / n + weight_decay I. The first step from zeros is a ridge
solution. Few more are needed, since no direction is much steeper than 1 in these coordinates. Of
many records every so many-th is enough for the bound, as it decides how fast the minimum is found
and not which. It is made of rounded features, so that it is a product of whole numbers, which all
threads may share; all else is computed in one thread, over the records in a fixed order.

No seed and no earlier weights: a start from these would remember the records that left.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from app.domain.errors import RunFailedError
from workers.exact.arithmetic import repeatable
from workers.exact.statistics import LEVELS

_MEMORY: Final = 20
_LINE_SEARCH: Final = 40
_ROWS_AT_ONCE: Final = 256  # fit into a processor's cache, so that a pass reads them once
_BOUND_RECORDS: Final = 4  # for the bound, at least so many for each feature
_BOUND_ROWS: Final = 4096  # and in all, as far as there are so many
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Minimum:
    """Where training stopped.

    Attributes:
        weight: float64 [rows, size]; one row for two classes.
        evaluations: passes over the records.
    """

    weight: Floats
    evaluations: int


def minimise(
    features: Floats,
    labels: NDArray[np.int64],
    *,
    classes: int,
    weight_decay: float,
    smoothness: float,
    tolerance: float,
    most_evaluations: int,
) -> Minimum:
    """Return weights where the gradient of f has at most the norm ``tolerance``.

    Args:
        features: phi of each record, of norm at most 1, [n, size]; their order counts.
        labels: [n], below ``classes``.
        classes: 2 or more.
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
    loss = _Loss(features, labels, classes=classes, weight_decay=weight_decay)
    with repeatable():
        search = _Search(loss, factor, tolerance=tolerance)
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
    """The loss in the coordinates of the search; it ends at the first point that meets."""

    def __init__(self, loss: "_Loss", factor: Floats, *, tolerance: float) -> None:
        self._loss = loss
        self._factor = factor
        self._tolerance = tolerance
        self.evaluations = 0
        self.met: Floats | None = None

    def value_and_gradient(self, position: Floats) -> tuple[float, Floats]:
        weight = self._weight(position)
        value, gradient = self._loss.at(weight)
        self.evaluations += 1
        if self.met is None and float(np.sqrt(np.square(gradient).sum())) <= self._tolerance:
            self.met = weight
        inner = solve_triangular(self._factor, gradient.T, lower=True, check_finite=False)
        return value, np.ascontiguousarray(inner.T).reshape(-1)

    def stop_when_met(self, _position: Floats) -> None:
        if self.met is not None:
            raise StopIteration

    def _weight(self, position: Floats) -> Floats:
        rows = position.reshape(self._loss.rows, -1).T
        outer = solve_triangular(self._factor, rows, lower=True, trans="T", check_finite=False)
        return np.ascontiguousarray(outer.T)


class _Loss:
    """f and its gradient, chunk after chunk in the records' order."""

    def __init__(
        self, features: Floats, labels: NDArray[np.int64], *, classes: int, weight_decay: float
    ) -> None:
        self.rows = 1 if classes == 2 else classes
        self._features = features
        self._labels = labels
        self._weight_decay = weight_decay

    def at(self, weight: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient, [rows, size]."""
        n = len(self._features)
        value, gradient = 0.0, np.zeros_like(weight.T)
        of_chunk = _logistic if self.rows == 1 else _softmax
        for start in range(0, n, _ROWS_AT_ONCE):
            features = self._features[start : start + _ROWS_AT_ONCE]
            labels = self._labels[start : start + _ROWS_AT_ONCE]
            losses, slopes = of_chunk(features @ weight.T, labels)
            value += losses
            gradient += features.T @ slopes
        value = value / n + self._weight_decay / 2 * float(np.square(weight).sum())
        return value, gradient.T / n + self._weight_decay * weight


def _logistic(logits: Floats, labels: NDArray[np.int64]) -> tuple[float, Floats]:
    """Return the sum of log(1 + e^z) - y z, and its slopes, [n, 1]."""
    z, y = logits[:, 0], labels.astype(np.float64)
    tail = np.exp(-np.abs(z))
    losses = np.maximum(z, 0.0) + np.log1p(tail) - y * z
    shares = np.where(z >= 0, 1.0, tail) / (1.0 + tail)
    return float(losses.sum()), (shares - y)[:, None]


def _softmax(logits: Floats, labels: NDArray[np.int64]) -> tuple[float, Floats]:
    """Return the sum of the cross-entropies, and its slopes, [n, classes]."""
    every = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(shifted)
    totals = shares.sum(axis=1)
    losses = np.log(totals) - shifted[every, labels]
    shares /= totals[:, None]
    shares[every, labels] -= 1.0
    return float(losses.sum()), shares


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
