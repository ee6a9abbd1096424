"""What must be kept of a lineage's training for later certificates, with the model.

A mechanism of tracked training needs the lineage's whole history to certify anything. This is that
history, as plain numbers: no weight, no record, no id.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.accounting.histories.history import History
from app.domain.plan import Plan, TrainingKind


@dataclass(frozen=True)
class Tracking:
    """How a lineage was trained, and what was forgotten since.

    Attributes:
        mechanism: of the newest release.
        begun_at_epoch: records forgotten at or before this epoch were never part of the training.
        history: up to the head; None where the mechanism counts otherwise.
    """

    mechanism: str
    begun_at_epoch: int
    settings: Mapping[str, float] = field(default_factory=dict)
    training: TrainingKind = TrainingKind.DESCENT
    history: History | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "mechanism": self.mechanism,
            "begun_at_epoch": self.begun_at_epoch,
            "settings": dict(self.settings),
            "training": self.training.value,
            "history": None if self.history is None else self.history.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Tracking":
        """Read what ``to_json`` wrote."""
        history = document["history"]
        return cls(
            mechanism=document["mechanism"],
            begun_at_epoch=document["begun_at_epoch"],
            settings=document["settings"],
            training=TrainingKind(document["training"]),
            history=None if history is None else History.from_json(history),
        )


@dataclass(frozen=True)
class CurrentRelease:
    """A lineage as its released head stands.

    Attributes:
        version: the head's number: how many releases the model has made, other trainings included.
        forgotten: records that its weights had read, forgotten since their training began and
            covered by its newest certificate.
    """

    tracking: Tracking
    version: int
    forgotten: int = 0


def history_of_run(plan: Plan, *, steps: int) -> History:
    """Return a lineage's history after a run of ``steps`` steps behind its training, if any."""
    noise_std = plan.settings.get("noise_std", 0.0)
    return (
        trained_history(plan)
        .after_steps(steps, noise_std=noise_std)
        .after_release(noise_std=plan.settings.get("release_noise_std", 0.0))
    )


def trained_history(plan: Plan) -> History:
    """Return a lineage's history before the run's own steps, with its training if that is ahead."""
    return History.from_json(plan.history).after_steps(
        int(plan.settings["training_steps"]), noise_std=plan.settings.get("noise_std", 0.0)
    )
