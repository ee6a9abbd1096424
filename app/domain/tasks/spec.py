"""What every task says: the columns that a network reads, a record's weight, and its variants."""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from app.domain.architectures import ArchitectureSpec
from app.domain.checks import is_number
from app.domain.columns import (
    CategoryColumn,
    ClassName,
    Column,
    InputColumns,
    NumberColumn,
    column_to_json,
)
from app.domain.errors import InvalidInputError
from app.domain.schema import InputSchema

FLIP, SHIFT, NOISE = AUGMENTATIONS = ("flip", "shift", "noise")
_AMOUNT: Final = {SHIFT: "pixels", NOISE: "std"}
_MOST_PIXELS: Final = 1024
_EXACT_OR_TRACKED: Final = ("linear_head", "ridge_head", "boosted_trees")


@dataclass(frozen=True)
class Augmentation:
    """One change of a record's inputs, as the network sees them.

    Attributes:
        name: ``flip`` (half of the images, left and right), ``shift`` (an image by up to so many
            pixels each way, zeros come in) or ``noise`` (normal, added to each number).
        amount: of ``shift``, pixels; of ``noise``, its standard deviation; of ``flip``, 0.
    """

    name: str
    amount: float = 0.0

    @classmethod
    def from_json(cls, document: object) -> "Augmentation":
        """Parse JSON, or raise ``InvalidInputError``."""
        if not isinstance(document, Mapping) or document.get("name") not in AUGMENTATIONS:
            raise InvalidInputError(f"task: augment lists {', '.join(AUGMENTATIONS)} by name")
        name = str(document["name"])
        field = _AMOUNT.get(name)
        if document.keys() != {"name", *([] if field is None else [field])}:
            has = "no other field" if field is None else f"the field {field!r}"
            raise InvalidInputError(f"task: the augmentation {name} has {has}")
        amount = 0.0 if field is None else document[field]
        whole = name != SHIFT or (type(amount) is int and amount <= _MOST_PIXELS)
        if field is not None and not (whole and is_number(amount, above=0)):
            raise InvalidInputError(f"task: {field} of the augmentation {name} is out of its range")
        return cls(name, amount)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        field = _AMOUNT.get(self.name)
        return {"name": self.name} | ({} if field is None else {field: self.amount})


def require_augmentable(
    augment: tuple[Augmentation, ...], schema: InputSchema, architecture: ArchitectureSpec
) -> None:
    """Raise ``InvalidInputError`` where augmentation makes no sense, or breaks a proof."""
    if not augment:
        return
    if architecture.member.name in _EXACT_OR_TRACKED:
        raise InvalidInputError(
            f"task: a {architecture.member.name} needs the same gradient of a record at every "
            "visit, or looks at it once: leave augment out, or use another architecture"
        )
    if architecture.on_features:
        raise InvalidInputError(
            "task: a frozen backbone computes each record's features once: leave augment out, or "
            'start from the backbone\'s weights with "frozen": false'
        )
    if schema.tokens:
        raise InvalidInputError("task: augment changes numbers, and the inputs are tokens")
    if len(schema.shape) not in (2, 3) and any(each.name != NOISE for each in augment):
        raise InvalidInputError(
            "task: flip and shift are for images, of shape [channels, height, width] or "
            "[height, width]"
        )


_READ: Final = ("name", "inputs", "target", "weight")
SMALLEST, LARGEST = 1e-6, 1e6
"""Of a public factor of a loss: beyond, products of them would leave the range of floats."""


@dataclass(frozen=True)
class Bounds:
    """What one record's loss can do to a linear head, on features of norm at most 1.

    The loss is convex and never negative. docs/guarantees.md, section 6, has the proofs.

    Attributes:
        lipschitz: the largest norm of its gradient; None where that has no bound.
        smoothness: the Lipschitz constant of its gradient: the largest curvature.
    """

    lipschitz: float | None
    smoothness: float

    def times(self, factor: float) -> "Bounds":
        """Return the bounds of a loss that is multiplied by at most ``factor``."""
        slope = None if self.lipschitz is None else self.lipschitz * factor
        return Bounds(slope, self.smoothness * factor)


@dataclass(frozen=True, kw_only=True)
class WeightColumn:
    """A column of factors for the records' losses.

    Attributes:
        column: its name.
        most: the largest allowed factor; a record with another one, or a negative one, is refused.
    """

    column: str
    most: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise InvalidInputError("task: weight.column must name a column")
        require_factor("weight.most", self.most)


@dataclass(frozen=True, kw_only=True)
class TaskSpec(ABC):
    """A task over a dataset.

    Attributes:
        weight: the records' weights, if they have any.
        augment: random variants of records in training.
    """

    name: ClassVar[str]
    weight: WeightColumn | None = None
    augment: tuple[Augmentation, ...] = ()

    @property
    def outputs(self) -> int:
        """How many numbers the network gives for a record; of a language model, for a token."""
        return len(self.target_columns)

    @property
    def names(self) -> tuple[ClassName, ...] | None:
        """The names of the outputs, if they have names."""
        return None

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The columns that hold the target; none where the inputs are their own."""
        return ()

    @property
    def rough(self) -> str | None:
        """Why no constant bounds the curvature of its loss in any network, where none does."""
        if self.augment:
            return "augment gives a record another loss at every visit"
        return None

    @property
    def bounds(self) -> Bounds | None:
        """The bounds of its loss in a linear head; None if it has none or is not convex."""
        return None

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return what its JSON has beside name, weight and augment."""

    @property
    def input_columns(self) -> tuple[Column, ...]:
        """How columns become inputs; none where a class of the operator's reads them."""
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that it reads."""
        weight = () if self.weight is None else (self.weight.column,)
        return (*(each.name for each in self.input_columns), *self.target_columns, *weight)

    @property
    def required(self) -> frozenset[str]:
        """The columns in which it has no rule for a missing value.

        A row without a target is not learned from.
        """
        ruled = {
            each.name
            for each in self.input_columns
            if (isinstance(each, NumberColumn | CategoryColumn) and each.missing is not None)
            or (isinstance(each, CategoryColumn) and each.other)
        }
        return frozenset(self.columns) - ruled - frozenset(self.target_columns)

    @abstractmethod
    def schema(self) -> InputSchema:
        """Return the schema of what the network reads, before a backbone."""

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """Return the shape of what the network gives for one record of inputs of this shape."""
        return (self.outputs,)

    @property
    def rows(self) -> int:
        """The rows of a linear head's weights: two classes share one."""
        return self.outputs

    def reading(self) -> dict[str, Any]:
        """Return what decides a record's inputs, target and weight, as JSON values."""
        return self.to_json()

    @property
    def reading_digest(self) -> str:
        """SHA-256 of how records are read: tasks that differ in their loss alone share it."""
        spelt = json.dumps(self.reading(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(spelt.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, without what is left at its default."""
        weight = (
            {}
            if self.weight is None
            else {"weight": {"column": self.weight.column, "most": self.weight.most}}
        )
        augment = {"augment": [each.to_json() for each in self.augment]} if self.augment else {}
        return {"name": self.name, **self.options(), **weight, **augment}

    @property
    def heaviest(self) -> float:
        """The largest factor that a record's weight can be."""
        return 1.0 if self.weight is None else self.weight.most


@dataclass(frozen=True, kw_only=True)
class BuiltInSpec(TaskSpec):
    """A task whose inputs are columns by rule.

    Attributes:
        inputs: how columns become what the network reads.
    """

    inputs: InputColumns

    @property
    def input_columns(self) -> tuple[Column, ...]:
        """How columns become inputs."""
        return self.inputs.columns

    def schema(self) -> InputSchema:
        """Return the schema of what the network reads, before a backbone."""
        offset, scale = self.inputs.scaling
        return InputSchema(
            shape=self.inputs.shape,
            dtype=self.inputs.dtype,
            offset=offset,
            scale=scale,
            classes=self.outputs,
            vocabulary=self.inputs.vocabulary,
        )

    def reading(self) -> dict[str, Any]:
        """Return what decides a record's inputs, target and weight, as JSON values."""
        document = self.to_json()
        return {name: document[name] for name in _READ if name in document}

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, without what is left at its default."""
        inputs = [column_to_json(each) for each in self.input_columns]
        return {"name": self.name, "inputs": inputs} | super().to_json()


def require_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
) -> float:
    """Return a finite number within the bounds, or raise ``InvalidInputError``."""
    if not is_number(value, above=above, least=least, below=below):
        raise InvalidInputError(f"task: {name} is out of its range")
    return float(value)  # type: ignore[arg-type]


def require_factor(name: str, value: object) -> float:
    """Return a factor from ``SMALLEST`` to ``LARGEST``, or raise ``InvalidInputError``."""
    factor = require_number(name, value)
    if not SMALLEST <= factor <= LARGEST:
        raise InvalidInputError(f"task: {name} must lie between {SMALLEST:g} and {LARGEST:g}")
    return factor


def require_columns(names: tuple[str, ...], *, most: int) -> None:
    """Check that a target's columns differ, or raise ``InvalidInputError``."""
    if not 1 <= len(names) <= most or len(set(names)) < len(names):
        raise InvalidInputError(f"task: target.columns must list 1 to {most:,} different columns")


def factors(values: object, count: int) -> tuple[float, ...]:
    """Return ``count`` class weights, some of which may be 0, or none."""
    if not values:
        return ()
    if not isinstance(values, list | tuple) or len(values) != count:
        raise InvalidInputError(f"task: class_weights must list {count} numbers")
    found = tuple(
        0.0 if is_number(value) and value == 0 else require_factor("class_weights", value)
        for value in values
    )
    if max(found) <= 0:
        raise InvalidInputError("task: class_weights must have a number above 0")
    return found
