"""Targets of a ridge head as whole numbers below 2^15, each from its own record alone.

A class is 1 for the record's own and 0 for the others; a label lies between -1 (no) and 1 (yes), in
units of 1 / (2^15 - 1); a number is clipped to the target range, in units of target_range / 2^15.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec
from app.domain.tasks.spec import TaskSpec
from workers.training.exact.statistics import LEVELS, one_hot


@dataclass(frozen=True)
class Targets:
    """How a task's targets are rounded.

    Attributes:
        task: one that a ridge head can learn (``app.domain.heads.ridge_head.require_task``).
        target_range: of a regression; None for others.
    """

    task: TaskSpec
    target_range: float | None = None

    @property
    def unit(self) -> float:
        """What one is worth in the scores of the head."""
        if self.target_range is not None:
            return self.target_range / LEVELS
        return 1 / (LEVELS - 1) if isinstance(self.task, MultiLabelSpec) else 1.0

    def numbers(self, targets: NDArray[Any]) -> NDArray[np.int16]:
        """Return whole numbers, [n, outputs]; what is not a number becomes 0."""
        if isinstance(self.task, ClassificationSpec):
            return one_hot(targets, self.task.classes)
        levels = targets.astype(np.float64)
        if isinstance(self.task, MultiLabelSpec):
            levels = 2 * levels - 1
        levels /= self.unit
        largest = LEVELS - 1
        rounded = np.rint(np.clip(np.nan_to_num(levels), -largest, largest))
        return rounded.astype(np.int16)
