"""Classification: one class a record, by softmax cross-entropy."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from app.domain.columns import MAX_CLASSES, ClassName, LabelColumn
from app.domain.errors import InvalidInputError
from app.domain.tasks.spec import Bounds, TaskSpec, factors, require_number


def rows_of(classes: int) -> int:
    """Return how many rows of weights some classes need: two share one."""
    return 1 if classes == 2 else classes


@dataclass(frozen=True, kw_only=True)
class ClassificationSpec(TaskSpec):
    """One class a record.

    Attributes:
        classes: how many there are.
        target: the column of the classes and their names; None where the loss alone
            matters.
        class_weights: a factor for the loss of each class's records; none: 1 for each.
        label_smoothing: share of the target that is spread over all classes.
    """

    name: ClassVar = "classification"
    classes: int
    target: LabelColumn | None = None
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if type(self.classes) is not int or not 2 <= self.classes <= MAX_CLASSES:
            raise InvalidInputError(f"task: classes must lie between 2 and {MAX_CLASSES:,}")
        weights = factors("class_weights", self.class_weights, self.classes)
        object.__setattr__(self, "class_weights", weights)
        require_number("label_smoothing", self.label_smoothing, least=0, below=1)

    @property
    def outputs(self) -> int:
        """The number of classes."""
        return self.classes

    @property
    def rows(self) -> int:
        """One row for two classes."""
        return rows_of(self.classes)

    @property
    def names(self) -> tuple[ClassName, ...] | None:
        """The names of the classes, if the task lists them."""
        return None if self.target is None else self.target.classes

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The column of the classes."""
        return () if self.target is None else (self.target.name,)

    @property
    def bounds(self) -> Bounds:
        """Those of one logit for two classes, of softmax for more (docs/guarantees.md, 6)."""
        plain = Bounds(1.0, 0.25) if self.classes == 2 else Bounds(math.sqrt(2), 0.5)
        return plain.times(self.heaviest * max(self.class_weights, default=1.0))

    def options(self) -> dict[str, Any]:
        """Return target, class weights and smoothing."""
        target = self.target
        named = {} if target is None else {"column": target.name, "classes": list(target.classes)}
        return {
            **({"target": named} if named else {"classes": self.classes}),
            **({"class_weights": list(self.class_weights)} if self.class_weights else {}),
            **({"label_smoothing": self.label_smoothing} if self.label_smoothing else {}),
        }
