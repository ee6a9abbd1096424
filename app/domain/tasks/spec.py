"""What every task says: the columns that a network reads, and the weight of a record."""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from app.domain.checks import is_number
from app.domain.columns import ClassName, InputColumns, column_to_json
from app.domain.errors import InvalidInputError
from app.domain.schema import InputSchema
from app.domain.tasks.augmentation import Augmentation

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
        inputs: how columns become what the network reads; None for a task of the operator's own,
            which reads them itself.
        weight: the records' weights, if they have any.
        augment: random variants of records in training.
    """

    name: ClassVar[str]
    inputs: InputColumns | None = None
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
    @abstractmethod
    def target_columns(self) -> tuple[str, ...]:
        """The columns that hold the target."""

    @property
    def rough(self) -> str | None:
        """Why no constant bounds the curvature of its loss in any network, where none does."""
        if self.augment:
            return "augment gives a record another loss at every visit"
        return None

    @property
    @abstractmethod
    def bounds(self) -> Bounds | None:
        """The bounds of its loss in a linear head; None if it has none or is not convex."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return what its JSON has beside name, inputs and weight."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that it reads."""
        read = () if self.inputs is None else tuple(each.name for each in self.inputs.columns)
        weight = () if self.weight is None else (self.weight.column,)
        return (*read, *self.target_columns, *weight)

    def schema(self) -> InputSchema:
        """Return the schema of what the network reads, before a backbone."""
        if self.inputs is None:
            raise InvalidInputError("task: it needs inputs, the columns that are read")
        offset, scale = self.inputs.scaling
        return InputSchema(
            shape=self.inputs.shape,
            dtype=self.inputs.dtype,
            offset=offset,
            scale=scale,
            classes=self.outputs,
            vocabulary=self.inputs.vocabulary,
        )

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """Return the shape of what the network gives for one record of inputs of this shape."""
        return (self.outputs,)

    @property
    def rows(self) -> int:
        """The rows of a linear head's weights: two classes share one."""
        return self.outputs

    def reading(self) -> dict[str, Any]:
        """Return what decides a record's inputs, target and weight, as JSON values."""
        if self.inputs is None:
            return {}
        document = self.to_json()
        return {name: document[name] for name in _READ if name in document}

    @property
    def reading_digest(self) -> str:
        """SHA-256 of how records are read: tasks that differ in their loss alone share it."""
        spelt = json.dumps(self.reading(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(spelt.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, without what is left at its default."""
        inputs = (
            {}
            if self.inputs is None
            else {"inputs": [column_to_json(each) for each in self.inputs.columns]}
        )
        weight = (
            {}
            if self.weight is None
            else {"weight": {"column": self.weight.column, "most": self.weight.most}}
        )
        augment = {"augment": [each.to_json() for each in self.augment]} if self.augment else {}
        return {"name": self.name, **inputs, **self.options(), **weight, **augment}

    @property
    def heaviest(self) -> float:
        """The largest factor that a record's weight can be."""
        return 1.0 if self.weight is None else self.weight.most


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


def factors(name: str, values: object, count: int) -> tuple[float, ...]:
    """Return a list of ``count`` factors, some of which may be 0, or none."""
    if not values:
        return ()
    if not isinstance(values, list | tuple) or len(values) != count:
        raise InvalidInputError(f"task: {name} must list {count} numbers")
    found = tuple(
        0.0 if is_number(value) and value == 0 else require_factor(name, value) for value in values
    )
    if max(found) <= 0:
        raise InvalidInputError(f"task: {name} must have a number above 0")
    return found
