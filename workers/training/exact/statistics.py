"""Sums over records that determine a ridge head: whole numbers, and therefore exact.

Features are rounded to integers below 2^15 in absolute value. A product of float64 matrices is
exact while its partial sums stay below 2^53, whatever their order, as in chunks of up to 2^23
records. The totals are int64. So adding and subtracting records commute, and subtraction undoes
addition bit for bit (docs/guarantees.md, section 13).

Targets become integers below 2^15 as well, each from its own record alone. A class is 1 for the
record's own and 0 for the others; a label lies between -1 (no) and 1 (yes), in units of
1 / (2^15 - 1); a number is clipped to the target range, in units of target_range / 2^15.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from app.domain.schema import InputSchema
from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec
from app.domain.tasks.spec import TaskSpec
from app.registry.datasets.columns.encoding import NO_CLASS

LEVELS: Final = 2**15
CHUNK_ROWS: Final = 8192
MOST_CHUNK_ROWS: Final = 2**23
MOST_RECORDS: Final = 2**32
_CONVERTED_AT_ONCE: Final = 256

Integers = NDArray[np.int64]


def quantised(
    features: NDArray[np.generic], schema: InputSchema, feature_range: float
) -> NDArray[np.int16]:
    """Return features as integers below 2^15, each from its own number alone.

    Args:
        features: raw [n, size].
        schema: models see (raw - offset) * scale.
        feature_range: what becomes 2^15; larger ones are clipped to the largest integer. What is
            not a number becomes 0.
    """
    rounded = np.empty(features.shape, dtype=np.int16)
    largest = LEVELS - 1
    with np.errstate(all="ignore"):
        for start in range(0, len(features), _CONVERTED_AT_ONCE):
            rows = slice(start, start + _CONVERTED_AT_ONCE)
            seen = features[rows].astype(np.float32)
            if schema.offset != 0.0:
                seen -= np.float32(schema.offset)
            if schema.scale != 1.0:
                seen *= np.float32(schema.scale)
            levels = seen * np.float64(LEVELS / feature_range)
            np.clip(levels, -largest, largest, out=levels)
            np.rint(levels, out=levels)
            levels[np.isnan(levels)] = 0.0
            rounded[rows] = levels
    return rounded


def known_targets(targets: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which records have a target, [n]: classes [n] or numbers [n, targets]."""
    if targets.ndim == 1:
        return np.asarray(targets != NO_CLASS)
    return np.asarray(~np.isnan(targets).any(axis=1))


def one_hot(labels: Integers, classes: int) -> NDArray[np.int16]:
    """Return a target of 1 for each label and 0 for the other classes: [n, classes]."""
    targets = np.zeros((len(labels), classes), dtype=np.int16)
    targets[np.arange(len(labels)), labels] = 1
    return targets


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums over records with features x [size] and targets y [outputs], all of them integers.

    Attributes:
        records: their number, int64 [].
        features: the sum of x, [size].
        products: the sum of x xᵀ, [size, size].
        targets: the sum of y, [outputs].
        squares: the sum of y², [outputs].
        crossed: the sum of x yᵀ, [size, outputs].
    """

    records: Integers
    features: Integers
    products: Integers
    targets: Integers
    squares: Integers
    crossed: Integers

    @classmethod
    def none(cls, size: int, outputs: int) -> Self:
        """Return the sums over no record."""
        shapes = [(), (size,), (size, size), (outputs,), (outputs,), (size, outputs)]
        return cls(*(np.zeros(shape, dtype=np.int64) for shape in shapes))

    @classmethod
    def over(
        cls,
        features: NDArray[np.int16],
        targets: NDArray[np.int16],
        *,
        chunk_rows: int = CHUNK_ROWS,
    ) -> Self:
        """Return the sums over records.

        Args:
            features: [n, size], as ``quantised`` returns them.
            targets: [n, outputs], below 2^15 in absolute value, too.
            chunk_rows: records in one matrix product.

        Raises:
            RunFailedError: so large a chunk would not be exact.
        """
        if not 1 <= chunk_rows <= MOST_CHUNK_ROWS:
            raise RunFailedError(f"sums are exact in chunks of 1 to {MOST_CHUNK_ROWS} records")
        total = cls.none(features.shape[1], targets.shape[1])
        for start in range(0, len(features), chunk_rows):
            x = features[start : start + chunk_rows].astype(np.float64)
            y = targets[start : start + chunk_rows].astype(np.float64)
            for sums, exact in (
                (total.records, np.array(len(x))),
                (total.features, x.sum(axis=0)),
                (total.products, x.T @ x),
                (total.targets, y.sum(axis=0)),
                (total.squares, (y * y).sum(axis=0)),
                (total.crossed, x.T @ y),
            ):
                np.add(sums, exact.astype(np.int64), out=sums)
        return total

    @property
    def size(self) -> int:
        """Features of a record."""
        return len(self.features)

    @property
    def outputs(self) -> int:
        """Targets of a record."""
        return len(self.targets)

    def add(self, other: "Statistics") -> None:
        """Add the sums over other records, in place.

        Raises:
            RunFailedError: there are so many records that a sum may not fit.
        """
        for name, mine in self.named().items():
            np.add(mine, getattr(other, name), out=mine)
        if self.records > MOST_RECORDS:
            raise RunFailedError(f"a ridge_head counts at most {MOST_RECORDS} records")

    def subtract(self, other: "Statistics") -> None:
        """Undo an addition, in place."""
        for name, mine in self.named().items():
            np.subtract(mine, getattr(other, name), out=mine)

    def named(self) -> dict[str, Integers]:
        """Return all sums by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_named(cls, sums: Mapping[str, Integers]) -> Self | None:
        """Read what ``named`` returned; None if it is something else."""
        names = {field.name for field in fields(cls)}
        if sums.keys() != names or any(each.dtype != np.int64 for each in sums.values()):
            return None
        return cls(**{name: each.copy() for name, each in sums.items()})


@dataclass(frozen=True)
class Targets:
    """How a task's targets are rounded.

    Attributes:
        task: one that a ridge head can learn (``app.domain.heads.ridge_head.require_task``).
        target_range: of a regression; None for others.
    """

    task: TaskSpec
    target_range: float | None = None

    @property
    def unit(self) -> float:
        """What one is worth in the scores of the head."""
        if self.target_range is not None:
            return self.target_range / LEVELS
        return 1 / (LEVELS - 1) if isinstance(self.task, MultiLabelSpec) else 1.0

    def numbers(self, targets: NDArray[Any]) -> NDArray[np.int16]:
        """Return whole numbers, [n, outputs]; what is not a number becomes 0."""
        if isinstance(self.task, ClassificationSpec):
            return one_hot(targets, self.task.classes)
        levels = targets.astype(np.float64)
        if isinstance(self.task, MultiLabelSpec):
            levels = 2 * levels - 1
        levels /= self.unit
        largest = LEVELS - 1
        rounded = np.rint(np.clip(np.nan_to_num(levels), -largest, largest))
        return rounded.astype(np.int16)
