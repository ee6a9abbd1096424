"""What a lineage must remember of its training for later certificates: kept beside the model.

A mechanism of tracked training can only certify what it knows the whole history of. This is that
history, as plain numbers: no weight, no record, no id.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.accounting.drift import DriftLedger


@dataclass(frozen=True)
class Tracking:
    """How a lineage was trained, and what was forgotten since.

    Attributes:
        mechanism: for whose sake; its noise, if any, was there from the first step.
        begun_at_epoch: records forgotten at or before this epoch were never part of the training.
        settings: of the training, as in its plan.
        ledger: drift ledger up to the head; None where no drift is tracked.
    """

    mechanism: str
    begun_at_epoch: int
    settings: Mapping[str, float] = field(default_factory=dict)
    ledger: DriftLedger | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "mechanism": self.mechanism,
            "begun_at_epoch": self.begun_at_epoch,
            "settings": dict(self.settings),
            "ledger": None if self.ledger is None else self.ledger.to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Tracking":
        """Read what ``to_json`` wrote."""
        ledger = document["ledger"]
        return cls(
            mechanism=document["mechanism"],
            begun_at_epoch=document["begun_at_epoch"],
            settings=document["settings"],
            ledger=None if ledger is None else DriftLedger.from_json(ledger),
        )
