"""The convex losses of linear heads, in float64: their sums over records, and their slopes.

The same as those of ``workers.training.tasks``, in an arithmetic of their own that is repeatable:
NumPy's, over the records in their order. Each is convex in the scores and never negative, and its
slopes are Lipschitz in them with the constant of the task's ``bounds``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from app.domain.tasks.built_in import (
    HUBER,
    SQUARED,
    ClassificationSpec,
    MultiLabelSpec,
    RegressionSpec,
)
from app.domain.tasks.spec import TaskSpec
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
