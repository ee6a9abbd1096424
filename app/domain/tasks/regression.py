"""Regression: numbers a record, by the squared, Huber's or the quantile loss."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from app.domain.errors import InvalidInputError
from app.domain.tasks.spec import Bounds, TaskSpec, require_columns, require_factor, require_number

MOST_TARGETS: Final = 10_000
SQUARED, HUBER, QUANTILE = LOSSES = ("squared", "huber", "quantile")


@dataclass(frozen=True, kw_only=True)
class RegressionSpec(TaskSpec):
    """One or more numbers a record.

    Attributes:
        targets: their columns.
        offset, scale: public constants: the network learns (number - offset) * scale.
        loss: ``squared`` (half of it), ``huber`` or ``quantile``; added up over the targets.
        threshold: of Huber's loss, after scaling: the error above which it grows linearly.
        quantile: of the quantile loss.
    """

    name: ClassVar = "regression"
    targets: tuple[str, ...]
    offset: float = 0.0
    scale: float = 1.0
    loss: str = SQUARED
    threshold: float = 1.0
    quantile: float = 0.5

    def __post_init__(self) -> None:
        require_columns(self.targets, most=MOST_TARGETS)
        if self.loss not in LOSSES:
            raise InvalidInputError(f"task: loss must be one of {', '.join(LOSSES)}")
        require_number("target.offset", self.offset)
        if require_number("target.scale", self.scale) == 0:
            raise InvalidInputError("task: target.scale must not be 0")
        require_factor("threshold", self.threshold)
        require_number("quantile", self.quantile, above=0, below=1)
        for field, loss, default in (("threshold", HUBER, 1.0), ("quantile", QUANTILE, 0.5)):
            if self.loss != loss and getattr(self, field) != default:
                raise InvalidInputError(f"task: {field} is for the loss {loss} only")

    @property
    def names(self) -> tuple[str, ...]:
        """The targets."""
        return self.targets

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The targets."""
        return self.targets

    @property
    def rough(self) -> str | None:
        """The kink of the quantile loss."""
        return "the quantile loss has a kink" if self.loss == QUANTILE else super().rough

    @property
    def bounds(self) -> Bounds | None:
        """Huber's slope is at most the threshold for each target; its curvature is at most 1.

        The squared loss has no bound on its slope. The quantile loss has a kink, so none on its
        curvature either.
        """
        if self.loss == QUANTILE:
            return None
        slope = self.threshold * math.sqrt(len(self.targets)) if self.loss == HUBER else None
        return Bounds(slope, 1.0).times(self.heaviest)

    def in_units(self, outputs: Any) -> Any:  # noqa: ANN401 - arrays of NumPy and of PyTorch
        """Return a network's outputs as numbers in the targets' units."""
        return outputs / self.scale + self.offset

    def options(self) -> dict[str, Any]:
        """Return target, loss and its number."""
        scaled = (self.offset, self.scale) != (0.0, 1.0)
        scaling = {"offset": self.offset, "scale": self.scale} if scaled else {}
        return {
            "target": {"columns": list(self.targets), **scaling},
            "loss": self.loss,
            **({"threshold": self.threshold} if self.loss == HUBER else {}),
            **({"quantile": self.quantile} if self.loss == QUANTILE else {}),
        }
