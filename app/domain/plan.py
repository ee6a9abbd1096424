"""A plan: a mechanism with all its parameters, its predicted cost and its guarantee."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from app.domain.schedules import from_json, to_json


class TrainingKind(StrEnum):
    """How a lineage is trained."""

    RECIPE = "recipe"
    """By the model's recipe."""
    DESCENT = "descent"
    """By descent on fixed batches, so that every step can be counted."""
    PRIVATE = "private"
    """With DP-SGD."""
    EXACT = "exact"
    """As a deterministic function of the retained records, anew in every run."""


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
        training: how the lineage is, or was, trained.
        history: of the lineage up to this run's requests, in its JSON form; None where none is
            tracked.
        predicted: what the planner expects; shown to users, never relied upon.
    """

    mechanism: str
    parameters: Mapping[str, Any]
    epsilon: float
    delta: float
    budget_epochs: float
    predicted: Mapping[str, float]
    settings: Mapping[str, float] = field(default_factory=dict)
    training: TrainingKind = TrainingKind.RECIPE
    history: Mapping[str, Any] | None = None

    @property
    def is_tracked(self) -> bool:
        """Whether the lineage must remember how it was trained."""
        return self.training in (TrainingKind.DESCENT, TrainingKind.PRIVATE)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {
            "parameters": to_json(self.parameters),
            "predicted": dict(self.predicted),
            "settings": dict(self.settings),
            "training": self.training.value,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Plan":
        """Read what ``to_json`` wrote."""
        read = {
            "parameters": from_json(document["parameters"]),
            "training": TrainingKind(document["training"]),
        }
        return cls(**{**document, **read})
