"""How a model is trained without noise: first, and again after its target is met."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Final

from app.domain.checks import is_number, known_fields
from app.domain.errors import InvalidInputError


def _require(name: str, condition: object, allowed: str) -> None:
    if not condition:
        raise InvalidInputError(f"recipe: {name} must be {allowed}")


def _require_choice(name: str, choice: object, choices: tuple[str, ...]) -> None:
    _require(name, isinstance(choice, str) and choice in choices, f"one of {', '.join(choices)}")


def _require_whole(name: str, number: object, most: int) -> None:
    fits = type(number) is int and 1 <= number <= most
    _require(name, fits, f"a whole number from 1 to {most}")


MOST_GROUPS: Final = 64
_LONGEST_PATTERN: Final = 500
_FIELDS: Final = frozenset({"parameters", "learning_rate", "weight_decay"})


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters, by their names, and what the optimiser does otherwise with them.

    Attributes:
        parameters: a pattern for names of parameters, such as ``layers.0.*`` or ``*.bias``: ``*``
            is any text, ``?`` any letter. A parameter belongs to the first group that has it.
        learning_rate: the highest rate of the schedule for them; null for the recipe's.
        weight_decay: for them; null for the recipe's.

    Raises:
        InvalidInputError: a field is out of its range, or the group changes nothing.
    """

    parameters: str
    learning_rate: float | None = field(default=None, metadata={"exclusiveMinimum": 0})
    weight_decay: float | None = field(default=None, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        _require(
            "groups: parameters",
            isinstance(self.parameters, str) and 0 < len(self.parameters) <= _LONGEST_PATTERN,
            f"a pattern for names, of at most {_LONGEST_PATTERN} letters",
        )
        rate, decay = self.learning_rate, self.weight_decay
        _require("groups: learning_rate", rate is None or is_number(rate, above=0), "above 0")
        _require("groups: weight_decay", decay is None or is_number(decay, least=0), "0 or above")
        _require(
            "groups",
            (rate, decay) != (None, None),
            "objects with parameters and a learning_rate or a weight_decay",
        )

    @classmethod
    def all_from_json(cls, document: object) -> "tuple[ParameterGroup, ...]":
        """Parse a list of groups, or raise ``InvalidInputError``."""
        _require("groups", isinstance(document, list | tuple), "a list")
        groups = []
        for group in document:  # type: ignore[attr-defined]
            if isinstance(group, cls):
                groups.append(group)
                continue
            _require(
                "groups",
                isinstance(group, Mapping) and "parameters" in group,
                "objects with parameters and a learning_rate or a weight_decay",
            )
            groups.append(cls(**known_fields(group, "recipe: groups", _FIELDS)))
        return tuple(groups)

    def to_json(self) -> dict[str, Any]:
        """Return the group as plain JSON values, without what it leaves to the recipe."""
        return {name: value for name, value in vars(self).items() if value is not None}


def members_of(groups: Sequence[ParameterGroup], names: Collection[str]) -> list[list[str]]:
    """Return each group's parameters, then those of no group; no group may be without any."""
    left, members = list(names), []
    for group in groups:
        own = [name for name in left if fnmatchcase(name, group.parameters)]
        if not own:
            taken = any(fnmatchcase(name, group.parameters) for name in names)
            raise InvalidInputError(
                f"recipe: groups: no trainable parameter is named {group.parameters!r}"
                + (" that an earlier group has not" if taken else "")
                + f"; one is {next(iter(names), None)!r}"
            )
        members.append(own)
        left = [name for name in left if name not in own]
    return [*members, left]


_OPTIMIZERS = ("sgd", "adamw")
_SCHEDULES = ("one_cycle", "cosine", "constant")
_PRECISIONS = ("float32", "bfloat16")
MOST_EPOCHS = 100_000
_LARGEST_BATCH = 1_000_000
_ONE_CYCLE_WARMUP = 0.3


@dataclass(frozen=True)
class TrainingRecipe:
    """Optimiser, schedule, arithmetic and split.

    Steps with noise, and those whose drift is tracked, follow their mechanism's own rule. Of the
    recipe they use ``batch_size`` and, unless the mechanism needs the gradient of each record,
    ``micro_batches``.

    Attributes:
        optimizer: ``sgd`` or ``adamw``.
        learning_rate: the highest rate of the schedule.
        momentum: for ``sgd`` only.
        weight_decay: L2 decay rate per step, on every trainable parameter.
        groups: learning rates and weight decays of some parameters, in place of the recipe's own.
        epochs: passes over the training records.
        batch_size: records per step.
        micro_batches: how many parts of a batch are computed one after the other, to need less
            memory; their gradients add up to one step's.
        clip_norm: bound on the norm of a step's gradient, over all parameters; null for none.
        precision: ``float32``, or ``bfloat16`` for the forward pass under autocast: weights,
            gradients, noise and whatever a guarantee counts stay as they are.
        schedule: ``one_cycle`` (linear down to 0), ``cosine`` (down to 0 along half a cosine) or
            ``constant``.
        warmup_fraction: share of the steps in which the rate rises linearly; null for 0.3 with
            ``one_cycle`` and 0 with the others.
        held_out_fraction: share of the records held out of training, for evaluation.
        patience: training outside of the seal ends after so many epochs in a row without a smaller
            loss of the held-out records, and keeps the weights of the smallest; null trains all
            epochs. Of boosted trees it counts rounds, in each growing. The weights then depend on
            held-out records, too, and forget them by a run.

    Raises:
        InvalidInputError: a field is out of its range.
    """

    optimizer: str = field(default="sgd", metadata={"enum": _OPTIMIZERS})
    learning_rate: float = field(default=0.1, metadata={"exclusiveMinimum": 0})
    momentum: float = field(default=0.9, metadata={"minimum": 0, "exclusiveMaximum": 1})
    weight_decay: float = field(default=0.0005, metadata={"minimum": 0})
    groups: tuple[ParameterGroup, ...] = field(default=(), metadata={"maxItems": MOST_GROUPS})
    epochs: int = field(default=30, metadata={"minimum": 1, "maximum": MOST_EPOCHS})
    batch_size: int = field(default=128, metadata={"minimum": 1})
    micro_batches: int = field(default=1, metadata={"minimum": 1})
    clip_norm: float | None = field(default=None, metadata={"exclusiveMinimum": 0})
    precision: str = field(default="float32", metadata={"enum": _PRECISIONS})
    schedule: str = field(default="one_cycle", metadata={"enum": _SCHEDULES})
    warmup_fraction: float | None = field(
        default=None, metadata={"minimum": 0, "exclusiveMaximum": 1}
    )
    held_out_fraction: float = field(default=0.1, metadata={"minimum": 0, "maximum": 0.9})
    patience: int | None = field(default=None, metadata={"minimum": 1})

    def __post_init__(self) -> None:
        _require_choice("optimizer", self.optimizer, _OPTIMIZERS)
        _require_choice("schedule", self.schedule, _SCHEDULES)
        _require_choice("precision", self.precision, _PRECISIONS)
        _require("learning_rate", is_number(self.learning_rate, above=0), "above 0")
        _require("momentum", is_number(self.momentum, least=0, below=1), "from 0 to below 1")
        _require("weight_decay", is_number(self.weight_decay, least=0), "0 or above")
        _require_whole("epochs", self.epochs, MOST_EPOCHS)
        _require_whole("batch_size", self.batch_size, _LARGEST_BATCH)
        _require_whole("micro_batches", self.micro_batches, self.batch_size)
        norm, warmup, held_out = self.clip_norm, self.warmup_fraction, self.held_out_fraction
        _require("clip_norm", norm is None or is_number(norm, above=0), "above 0, or null")
        fits = warmup is None or is_number(warmup, least=0, below=1)
        _require("warmup_fraction", fits, "from 0 to below 1, or null")
        fits = is_number(held_out, least=0) and held_out <= 0.9
        _require("held_out_fraction", fits, "from 0 to 0.9")
        if self.patience is not None:
            _require_whole("patience", self.patience, MOST_EPOCHS)
            _require("patience", self.held_out_fraction > 0, "null without held-out records")
        _require("groups", len(self.groups) <= MOST_GROUPS, f"at most {MOST_GROUPS} groups")

    @property
    def warmup(self) -> float:
        """The share of the steps in which the rate rises."""
        if self.warmup_fraction is not None:
            return self.warmup_fraction
        return _ONE_CYCLE_WARMUP if self.schedule == "one_cycle" else 0.0

    @classmethod
    def from_json(cls, document: object) -> "TrainingRecipe":
        """Return the recipe of a JSON object, or raise ``InvalidInputError``."""
        return cls(**cls.fields_of(document))

    @classmethod
    def fields_of(cls, document: object) -> dict[str, Any]:
        """Return the fields that a JSON object names, or raise ``InvalidInputError``."""
        given = known_fields(document, "recipe", [each.name for each in fields(cls)])
        if "groups" in given:
            given["groups"] = ParameterGroup.all_from_json(given["groups"])
        return given

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as plain JSON values."""
        return asdict(self) | {"groups": [group.to_json() for group in self.groups]}
