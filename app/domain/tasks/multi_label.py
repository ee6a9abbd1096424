"""Multi-label classification: any number of labels a record, by logistic loss per label."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from app.domain.tasks.spec import Bounds, TaskSpec, factors, require_columns, require_number

MOST_LABELS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class MultiLabelSpec(TaskSpec):
    """Any number of labels a record.

    Attributes:
        labels: one column of yes or no, 1 or 0, for each label; their names are the labels'.
        class_weights: a factor for each label's loss; none: 1 for each.
        label_smoothing: moves 0 and 1 by half of it towards one half.
    """

    name: ClassVar = "multi_label"
    labels: tuple[str, ...]
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_columns(self.labels, most=MOST_LABELS)
        weights = factors("class_weights", self.class_weights, len(self.labels))
        object.__setattr__(self, "class_weights", weights)
        require_number("label_smoothing", self.label_smoothing, least=0, below=1)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels."""
        return self.labels

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The labels."""
        return self.labels

    @property
    def bounds(self) -> Bounds:
        """Each label adds a slope of at most 1; their curvatures are apart, 1/4 each."""
        weights = self.class_weights or (1.0,) * len(self.labels)
        return Bounds(math.hypot(*weights), max(weights) / 4).times(self.heaviest)

    def options(self) -> dict[str, Any]:
        """Return target, class weights and smoothing."""
        return {
            "target": {"columns": list(self.labels)},
            **({"class_weights": list(self.class_weights)} if self.class_weights else {}),
            **({"label_smoothing": self.label_smoothing} if self.label_smoothing else {}),
        }
