"""How a model is trained without noise: first, and again after its target is met."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from app.domain.errors import InvalidInputError

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("one_cycle", "constant")
MOST_EPOCHS = 100_000
_LARGEST_BATCH = 1_000_000


@dataclass(frozen=True)
class TrainingRecipe:
    """Optimiser, schedule and split.

    Attributes:
        optimizer: ``sgd`` or ``adamw``.
        learning_rate: the constant rate, or the peak of the one-cycle schedule.
        momentum: for ``sgd`` only.
        weight_decay: L2 decay rate per step, on every trainable parameter.
        epochs: passes over the training records.
        batch_size: records per step.
        schedule: ``one_cycle`` (linear up over the first 30 % of the steps, linear down) or
            ``constant``.
        held_out_fraction: share of the records held out of training, for evaluation.

    Raises:
        InvalidInputError: a field is out of its range.
    """

    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0005
    epochs: int = 30
    batch_size: int = 128
    schedule: str = "one_cycle"
    held_out_fraction: float = 0.1

    def __post_init__(self) -> None:
        _require_choice("optimizer", self.optimizer, OPTIMIZERS)
        _require_choice("schedule", self.schedule, SCHEDULES)
        _require(
            "learning_rate", _is_number(self.learning_rate) and self.learning_rate > 0, "above 0"
        )
        _require(
            "momentum", _is_number(self.momentum) and 0 <= self.momentum < 1, "from 0 to below 1"
        )
        _require(
            "weight_decay", _is_number(self.weight_decay) and self.weight_decay >= 0, "0 or above"
        )
        _require_whole("epochs", self.epochs, MOST_EPOCHS)
        _require_whole("batch_size", self.batch_size, _LARGEST_BATCH)
        _require(
            "held_out_fraction",
            _is_number(self.held_out_fraction) and 0 <= self.held_out_fraction <= 0.9,
            "from 0 to 0.9",
        )

    @classmethod
    def from_json(cls, document: object) -> "TrainingRecipe":
        """Return the recipe of a JSON object; missing fields get their defaults.

        Raises:
            InvalidInputError: a field is unknown or out of its range.
        """
        return cls(**cls.fields_of(document))

    @classmethod
    def fields_of(cls, document: object) -> dict[str, Any]:
        """Return the fields that a JSON object names, or raise ``InvalidInputError``."""
        if not isinstance(document, Mapping):
            raise InvalidInputError("recipe: must be an object")
        known = {field.name for field in fields(cls)}
        unknown = sorted(str(key) for key in set(document) - known)
        if unknown:
            raise InvalidInputError(
                f"recipe: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}"
            )
        return dict(document)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as plain JSON values."""
        return asdict(self)


def _is_number(number: object) -> bool:
    return (
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
    )


def _require(name: str, condition: object, allowed: str) -> None:
    if not condition:
        raise InvalidInputError(f"recipe: {name} must be {allowed}")


def _require_choice(name: str, choice: object, choices: tuple[str, ...]) -> None:
    _require(name, isinstance(choice, str) and choice in choices, f"one of {', '.join(choices)}")


def _require_whole(name: str, number: object, most: int) -> None:
    _require(
        name,
        type(number) is int and 1 <= number <= most,
        f"a whole number from 1 to {most}",
    )
