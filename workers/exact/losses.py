"""The convex losses of linear heads, in float64: their sums over records, and their slopes.

The same as those of ``workers.tasks``, in an arithmetic of their own that is repeatable: NumPy's,
over the records in their order. Each is convex in the scores and never negative, and its slopes are
Lipschitz in them with the constant of the task's ``bounds``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from app.domain.tasks.classification import ClassificationSpec
from app.domain.tasks.multi_label import MultiLabelSpec
from app.domain.tasks.regression import HUBER, SQUARED, RegressionSpec
from app.domain.tasks.spec import TaskSpec
from workers.tasks.task import TARGET, WEIGHT

Floats = NDArray[np.float64]


class Loss(Protocol):
    """The losses of some records, as functions of their scores."""

    @property
    def rows(self) -> int:
        """Return how many scores a record has: the rows of a head's weights."""

    def at(self, scores: Floats, records: slice) -> tuple[float, Floats]:
        """Return the sum of some records' losses, and its slopes in the scores [n, rows]."""


@dataclass(frozen=True, eq=False)
class Logistic:
    """log(1 + e^z) - y z for each score; two classes have one.

    Attributes:
        targets: y from 0 to 1, [n, rows].
        factors: of each loss, [n, rows] or [n, 1]; None: 1.
    """

    targets: Floats
    factors: Floats | None = None

    @property
    def rows(self) -> int:
        """Return the number of labels, or 1 for two classes."""
        return int(self.targets.shape[1])

    def at(self, scores: Floats, records: slice) -> tuple[float, Floats]:
        """Return the sum of the losses, and its slopes."""
        y = self.targets[records]
        tail = np.exp(-np.abs(scores))
        losses = np.maximum(scores, 0.0) + np.log1p(tail) - y * scores
        shares = np.where(scores >= 0, 1.0, tail) / (1.0 + tail)
        return _weighted(losses, shares - y, self.factors, records)


@dataclass(frozen=True, eq=False)
class Softmax:
    """The cross-entropy of classes.

    Attributes:
        labels: int64 [n], below ``classes``.
        classes: 3 or more.
        smoothing: the share of the target that is spread over all classes.
        factors: of each record's loss, [n, 1]; None: 1.
    """

    labels: NDArray[np.int64]
    classes: int
    smoothing: float = 0.0
    factors: Floats | None = None

    @property
    def rows(self) -> int:
        """Return the number of classes."""
        return self.classes

    def at(self, scores: Floats, records: slice) -> tuple[float, Floats]:
        """Return the sum of the losses, and its slopes."""
        labels = self.labels[records]
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
        return _weighted(losses[:, None], shares, self.factors, records)


@dataclass(frozen=True, eq=False)
class Errors:
    """Half the squared error for each score, or Huber's loss of it.

    Attributes:
        targets: [n, rows].
        threshold: the error above which the loss grows linearly; None: it never does.
        factors: of each record's loss, [n, 1]; None: 1.
    """

    targets: Floats
    threshold: float | None = None
    factors: Floats | None = None

    @property
    def rows(self) -> int:
        """Return the number of targets."""
        return int(self.targets.shape[1])

    def at(self, scores: Floats, records: slice) -> tuple[float, Floats]:
        """Return the sum of the losses, and its slopes."""
        errors = scores - self.targets[records]
        if self.threshold is None:
            return _weighted(np.square(errors) / 2, errors, self.factors, records)
        slopes = np.clip(errors, -self.threshold, self.threshold)
        return _weighted(slopes * (errors - slopes / 2), slopes, self.factors, records)


def loss_of(task: TaskSpec, tensors: Mapping[str, NDArray[Any]]) -> Loss:
    """Return the loss of a task's encoded records.

    Raises:
        RunFailedError: a linear head does not learn such a task.
    """
    targets = tensors[TARGET]
    factors = tensors[WEIGHT].astype(np.float64)[:, None] if WEIGHT in tensors else None
    match task:
        case ClassificationSpec():
            if task.class_weights:
                of_class = np.array(task.class_weights)[targets][:, None]
                factors = of_class if factors is None else factors * of_class
            if task.classes > 2:
                return Softmax(targets, task.classes, task.label_smoothing, factors)
            return Logistic(_smoothed(targets[:, None], task.label_smoothing), factors)
        case MultiLabelSpec():
            if task.class_weights:
                of_label = np.array(task.class_weights)[None, :]
                factors = of_label if factors is None else factors * of_label
            return Logistic(_smoothed(targets, task.label_smoothing), factors)
        case RegressionSpec() if task.loss in (SQUARED, HUBER):
            threshold = task.threshold if task.loss == HUBER else None
            return Errors(targets.astype(np.float64), threshold, factors)
    raise RunFailedError(f"a linear_head has no minimum for {task.name}")


def _smoothed(targets: NDArray[Any], smoothing: float) -> Floats:
    smoothed: Floats = targets.astype(np.float64) * (1.0 - smoothing) + smoothing / 2
    return smoothed


def _weighted(
    losses: Floats, slopes: Floats, factors: Floats | None, records: slice
) -> tuple[float, Floats]:
    if factors is None:
        return float(losses.sum()), slopes
    some = factors if len(factors) == 1 else factors[records]
    return float((losses * some).sum()), slopes * some
