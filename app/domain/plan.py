"""A plan: a mechanism with all its parameters, its predicted cost and its guarantee."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from app.domain.schedules import from_json, to_json


@dataclass(frozen=True)
class Plan:
    """What a run will do, fixed before it reads any weight.

    Attributes:
        mechanism: the mechanism's name, the same in accounting and workers.
        parameters: all keyword arguments of the accountant's ``account``; each is one number or,
            if the mechanism supports schedules, one number per step.
        epsilon, delta: the target.
        budget_epochs: passes over the retained records, noisy steps included.
        settings: what the update rule needs and the guarantee does not depend on.
        history: the lineage's history up to this run's requests, as JSON; None if not tracked.
        predicted: the planner's forecast, for display only.
    """

    mechanism: str
    parameters: Mapping[str, Any]
    epsilon: float
    delta: float
    budget_epochs: float
    predicted: Mapping[str, float]
    settings: Mapping[str, float] = field(default_factory=dict)
    history: Mapping[str, Any] | None = None

    @property
    def is_descent(self) -> bool:
        """Whether the lineage is trained by descent on fixed batches, so drift can be tracked."""
        return "training_steps" in self.settings

    @property
    def is_private(self) -> bool:
        """Whether the lineage is trained with DP-SGD."""
        return "noise_multiplier" in self.settings

    @property
    def is_tracked(self) -> bool:
        """Whether the lineage must remember how it was trained."""
        return self.is_descent or self.is_private

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {
            "parameters": to_json(self.parameters),
            "predicted": dict(self.predicted),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Plan":
        """Read what ``to_json`` wrote."""
        return cls(**{**document, "parameters": from_json(document["parameters"])})
