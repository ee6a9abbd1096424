"""Proposes a task on a dataset: what its columns are to a network, with the user's constants.

A task is public and outlives every record. So a value or a constant that only the file knows is
never listed by itself: the user gives it, or confirms what many rows share.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.domain.columns import (
    TRUTH,
    ArrayColumn,
    CategoryColumn,
    ClassName,
    Column,
    ImageColumn,
    InputColumns,
    LabelColumn,
    NumberColumn,
    TextColumn,
)
from app.domain.errors import InvalidInputError
from app.domain.ids import EXACT_BELOW
from app.domain.schema import WIDTHS, ColumnType, TableSchema
from app.domain.tasks.built_in import HUBER, ClassificationSpec, LanguageModelSpec, RegressionSpec
from app.domain.tasks.spec import BuiltInSpec
from app.registry.datasets.columns import cells
from app.registry.datasets.columns.problems import Problems

LEAST_ROWS: Final = 10
"""A value of fewer rows, or persons, is not proposed: it may identify one of them."""
MOST_PROPOSED: Final = 100
"""A column with more different values is free text, or an id."""
_MOST_NUMBERED: Final = 20
"""A target of more different whole numbers is a quantity."""
_LEAST_FOR_SCALE: Final = 10 * LEAST_ROWS
_LEAST_HALF: Final = 1e-300
"""Of the width of a column's numbers; the largest is its inverse."""
_FEW_NUMBERS: Final = 10
_KNOTS: Final = 5
_KNOTS_REACH: Final = 1.5
"""In what a column without knots becomes, which is about -1 … 1."""
_TEXT_LENGTH: Final = 256
_IMAGE_SHAPE: Final = (3, 64, 64)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A category's values, and whether all others count as one more."""

    values: tuple[str, ...]
    other: bool


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The columns' roles and public constants, as far as the user gives them.

    Attributes:
        target: the column that is learned; None for the next token of a text.
        regression: whether the target is a quantity, whatever it looks like.
        features: the columns that are read; empty for all that have no other role.
        drop: columns that are not read.
        classes: the classes' names.
        class_count: instead of names: the classes are 0 … class_count - 1.
        categories: values of columns that are encoded one-hot.
        bounds: of numbers and arrays, which become 0 and 1.
        missing: what replaces missing values, by column.
        shapes: of arrays and images.
        vocabulary: lists of numbers are tokens below it.
        splines: whether numbers become B-splines; see ``with_knots``.
    """

    target: str | None = None
    regression: bool = False
    features: Sequence[str] = ()
    drop: Sequence[str] = ()
    classes: tuple[str, ...] = ()
    class_count: int | None = None
    categories: Mapping[str, Listed] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    vocabulary: int | None = None
    splines: bool = False

    @property
    def class_names(self) -> tuple[ClassName, ...]:
        """The classes as whole numbers or truth values, if all are."""
        if {name.lower() for name in self.classes} == {"false", "true"}:
            return tuple(name.lower() == "true" for name in self.classes)
        if all(re.fullmatch(r"-?\d{1,15}", name) for name in self.classes):
            return tuple(map(int, self.classes))
        return self.classes


@dataclass(frozen=True)
class Proposal:
    """A task.

    Attributes:
        task: what it is.
        unconfirmed: columns whose values or constants the user did not give, but the file.
    """

    task: BuiltInSpec
    unconfirmed: Sequence[str]


class _UnfitError(Exception):
    """A column cannot be read as it is; the reason says what to do."""


def proposed(schema: TableSchema, choices: Choices, rows: pa.Table | None = None) -> Proposal:
    """Return a task on a dataset's columns with the user's choices.

    Args:
        schema: the dataset's.
        choices: the user's.
        rows: some of its rows, in the types of the schema, with the ids' columns.

    Raises:
        InvalidRecordsError: it names the columns that are at fault, and says what to do.
    """
    found = _Proposer(schema, choices, rows).proposal()
    if not choices.splines:
        return found
    task = with_knots(found.task, rows)
    if task == found.task:
        raise InvalidInputError(
            f"--splines: no input is a number of more than {_FEW_NUMBERS} values with --bounds, or "
            f"with a scale from at least {_LEAST_FOR_SCALE} rows of --data"
        )
    return replace(found, task=task)


def with_knots(task: BuiltInSpec, rows: pa.Table | None) -> BuiltInSpec:
    """Return a task that reads numbers as B-splines, but for columns with few different ones.

    The knots follow from the column's constants alone, low and high or offset and scale.
    """

    def reading(column: Column) -> Column:
        if not isinstance(column, NumberColumn):
            return column
        if rows is not None and pc.count_distinct(rows[column.name]).as_py() <= _FEW_NUMBERS:
            return column
        if column.low is not None and column.high is not None:
            ends = column.low, column.high
        elif rows is None or len(rows) < _LEAST_FOR_SCALE:
            return column
        else:
            reach = _KNOTS_REACH / abs(column.scale)
            ends = column.offset - reach, column.offset + reach
        knots = tuple(float(f"{each:.12g}") for each in np.linspace(*ends, _KNOTS))
        return replace(column, low=None, high=None, offset=0, scale=1, knots=knots)

    return replace(task, inputs=InputColumns(columns=tuple(map(reading, task.input_columns))))


class _Proposer:
    def __init__(self, schema: TableSchema, choices: Choices, rows: pa.Table | None) -> None:
        self._kinds = dict(schema.columns)
        self._choices = choices
        self._rows = rows
        self._problems = Problems()
        self._unconfirmed: list[str] = []
        self._persons: npt.NDArray[np.int64] | None = None
        if rows is not None and schema.subject_id is not None:
            self._persons = cells.texts_of(cells.plain(rows[schema.subject_id])).codes

    def proposal(self) -> Proposal:
        choices = self._choices
        rules = (*choices.categories, *choices.bounds, *choices.missing, *choices.shapes)
        roles = () if choices.target is None else (choices.target,)
        for name in dict.fromkeys((*roles, *choices.features, *choices.drop, *rules)):
            if name not in self._kinds:
                self._problems.add(None, name, "the dataset has no such column")
        self._problems.raise_any()
        taken = {*roles, *choices.drop}
        names = choices.features or [name for name in self._kinds if name not in taken]
        if not names:
            raise InvalidInputError("no column is left for the inputs")
        alone = len(names) == 1
        found = [self._noting(name, lambda name: self._input(name, alone=alone)) for name in names]
        target = None
        if choices.target is not None:
            target = self._noting(choices.target, self._target)
        self._problems.raise_any()
        inputs = InputColumns(columns=tuple(each for each in found if each is not None))
        if target is not None:
            return Proposal(target(inputs), self._unconfirmed)
        if inputs.vocabulary is None:
            raise InvalidInputError("name the column that is to be learned with --target")
        task = LanguageModelSpec(inputs=inputs)
        return Proposal(task, self._unconfirmed)

    def _noting(self, name: str, propose: Callable[[str], T]) -> T | None:
        try:
            return propose(name)
        except (_UnfitError, InvalidInputError) as error:  # such as values that cannot be listed
            self._problems.add(None, name, str(error))
            return None

    def _input(self, name: str, *, alone: bool) -> Column:
        given, kind = self._given(name), self._kinds[name]
        listed = self._choices.categories.get(name)
        if listed is not None:
            column: Column = CategoryColumn(name=name, values=listed.values, other=listed.other)
        elif self._is_empty(name):
            raise _UnfitError(f"holds no values; leave it out with --drop {spelt(name)}")
        elif kind.is_list:
            return self._array(name, kind, given)
        elif kind.kind in WIDTHS or kind.kind == "bool":
            column = self._number(name, kind, given)
        elif kind.kind == "string":
            column = self._text(name, alone=alone)
        elif kind.kind == "binary" and alone:
            column = ImageColumn(name=name, shape=given.pop("shape", _IMAGE_SHAPE))
        else:
            what = "bytes, which are read alone" if kind.kind == "binary" else "dates or times"
            raise _UnfitError(f"{what}; leave it out with --drop {spelt(name)}")
        if "missing" in given and not isinstance(column, NumberColumn | CategoryColumn):
            raise _UnfitError("takes no --missing")
        return self._with(column, given)

    def _is_empty(self, name: str) -> bool:
        return self._rows is not None and self._rows[name].null_count == len(self._rows)

    def _given(self, name: str) -> dict[str, Any]:
        """Return the options about a column."""
        choices, given = self._choices, dict[str, Any]()
        if name in choices.missing:
            given["missing"] = choices.missing[name]
        if name in choices.bounds:
            given["bounds"] = choices.bounds[name]
        if name in choices.shapes:
            given["shape"] = choices.shapes[name]
        return given

    def _with(self, column: Column, given: Mapping[str, Any]) -> Column:
        fields = dict(given)
        if "bounds" in fields:
            fields["low"], fields["high"] = fields.pop("bounds")
        if "missing" in fields and isinstance(column, NumberColumn):
            fields["missing"] = number_of(fields["missing"], f"--missing {column.name}")
            fields["flag_missing"] = False
        try:
            return replace(column, **fields)
        except TypeError as error:
            options = " and ".join("--" + each for each in given)
            raise _UnfitError(f"is read as a {column.kind}, which takes no {options}") from error

    def _number(self, name: str, kind: ColumnType, given: Mapping[str, Any]) -> NumberColumn:
        offset, scale = 0.0, 1.0
        if "bounds" not in given and kind.kind != "bool":
            offset, scale = self._scaling(name)
        said: dict[str, Any] = {}
        if kind.nullable:  # what the network sees as a middle
            said["missing"] = sum(given["bounds"]) / 2 if "bounds" in given else offset
            said["flag_missing"] = self._misses(name)
        return NumberColumn(name=name, offset=offset, scale=scale, **said)

    def _misses(self, name: str) -> bool:
        """Return whether enough rows, or persons, have no value, as far as they are known."""
        if self._rows is None:
            return True
        missing = self._rows[name].is_null().to_numpy()
        owners = np.arange(len(missing)) if self._persons is None else self._persons
        return len(np.unique(owners[missing & (owners >= 0)])) >= LEAST_ROWS

    def _scaling(self, name: str) -> tuple[float, float]:
        """Return constants that bring most numbers to about -1 … 1, rounded to one digit."""
        if self._rows is None:
            return 0.0, 1.0
        values = cells.numbers_of(cells.plain(self._rows[name])).values
        values = values[np.isfinite(values)]
        if len(values) < _LEAST_FOR_SCALE:
            return 0.0, 1.0
        low, high = np.quantile(values, [0.05, 0.95])
        if high <= low:
            return 0.0, 1.0
        half = high / 2 - low / 2
        if not _LEAST_HALF < half < 1 / _LEAST_HALF:
            raise _UnfitError(
                f"numbers that no scale brings to about 1; leave it out with --drop {spelt(name)}"
            )
        step = 10.0 ** math.floor(math.log10(half))
        reach = next(each for each in (1, 2, 5, 10) if half <= each * step)
        scale = float(f"{1 / (reach * step):.1g}")
        offset = float(f"{round((low / 2 + high / 2) / step) * step:.12g}")
        if (offset, scale) != (0, 1):
            self._unconfirmed.append(name)
        return offset, scale

    def _text(self, name: str, *, alone: bool) -> Column:
        advice = f"--drop {spelt(name)}, or list its public values with --category"
        if self._rows is None:
            if alone:
                return TextColumn(name=name, length=_TEXT_LENGTH)
            raise _UnfitError(f"text: name a file of rows with --data; otherwise {advice}")
        texts = _texts(self._rows, name)
        if {text.lower() for text in texts.distinct} <= TRUTH:
            return CategoryColumn(name=name, values=tuple(sorted(texts.distinct)), other=True)
        if len(texts.distinct) > MOST_PROPOSED:
            if alone:
                return TextColumn(name=name, length=_TEXT_LENGTH)
            count = len(texts.distinct)
            raise _UnfitError(
                f"text with {count} different values; is it an id? Otherwise {advice}"
            )
        common = self._common(texts)
        if not common:
            raise _UnfitError(f"text, each value of {self._few}; {advice}")
        self._unconfirmed.append(name)
        return CategoryColumn(name=name, values=tuple(sorted(common)), other=True)

    def _array(self, name: str, kind: ColumnType, given: Mapping[str, Any]) -> ArrayColumn:
        if kind.kind not in WIDTHS:
            raise _UnfitError(f"{kind}, where a list of numbers is expected")
        length = kind.length or 0
        if not length and self._rows is not None:
            length = next((len(value) for value in self._rows[name].to_pylist() if value), 0)
        if "shape" not in given and not length:
            raise _UnfitError(f"lists of any length; tell it with --shape {spelt(name)}=N")
        if "missing" in given:
            raise _UnfitError("is read as an array, which takes no --missing")
        shape: tuple[int, ...] = given.get("shape", (length,))
        if self._choices.vocabulary is not None:
            tokens = self._choices.vocabulary
            return ArrayColumn(name=name, shape=shape, dtype="int64", vocabulary=tokens)
        dtype = "uint8" if kind.kind == "uint8" else "float32"
        if "bounds" not in given:
            return ArrayColumn(name=name, shape=shape, dtype=dtype)
        low, high = given["bounds"]
        if not low < high:
            raise _UnfitError("low must be below high")
        return ArrayColumn(name=name, shape=shape, dtype=dtype, offset=low, scale=1 / (high - low))

    @property
    def _few(self) -> str:
        return f"fewer than {LEAST_ROWS} {'rows' if self._persons is None else 'persons'}"

    def _common(self, texts: cells.Texts) -> list[str]:
        """Return the values that enough rows, or persons, share."""
        owners = np.arange(len(texts.codes)) if self._persons is None else self._persons
        pairs = np.stack([texts.codes, owners], axis=1)
        codes = np.unique(pairs[pairs[:, 0] >= 0], axis=0)[:, 0]
        counts = np.bincount(codes, minlength=len(texts.distinct))
        return [text for text, n in zip(texts.distinct, counts, strict=True) if n >= LEAST_ROWS]

    def _target(self, name: str) -> Callable[[InputColumns], BuiltInSpec]:
        """Return what makes the task on some inputs."""
        kind = self._kinds[name]
        if self._is_empty(name):
            raise _UnfitError("holds no values")
        if kind.is_list or kind.kind not in (*WIDTHS, "bool", "string"):
            raise _UnfitError(f"{kind}, which cannot be a target")
        if self._choices.regression or self._is_quantity(name, kind):
            if kind.kind not in WIDTHS:
                raise _UnfitError(f"{kind}, where a number is expected")
            offset, scale = self._scaling(name)
            return lambda inputs: RegressionSpec(
                targets=(name,), offset=offset, scale=scale, loss=HUBER, inputs=inputs
            )
        label = LabelColumn(name=name, classes=tuple(self._classes(name, kind)))
        return lambda inputs: ClassificationSpec(target=label, inputs=inputs)

    def _is_quantity(self, name: str, kind: ColumnType) -> bool:
        if self._choices.class_count is not None or self._choices.classes:
            return False
        if kind.kind not in WIDTHS:
            return False
        if self._rows is None:
            if not kind.kind.startswith("float"):
                raise _UnfitError("whole numbers; name the classes with --classes, or --regression")
            return True
        values = cells.numbers_of(cells.plain(self._rows[name])).values
        found = np.unique(values[np.isfinite(values)])
        if (np.floor(found) != found).any() or len(found) > _MOST_NUMBERED:
            return True
        return bool((np.abs(found) > EXACT_BELOW).any())

    def _classes(self, name: str, kind: ColumnType) -> Sequence[ClassName]:
        if self._choices.class_count is not None:
            return range(self._choices.class_count)
        if self._choices.classes:
            return self._choices.class_names
        if kind.kind == "bool":
            return (False, True)
        if self._rows is None:
            raise _UnfitError("name the public classes with --classes, or a file with --data")
        texts = _texts(self._rows, name)
        if texts.distinct and {text.lower() for text in texts.distinct} <= TRUTH:
            return (False, True)
        found: Sequence[ClassName] = sorted(texts.distinct)
        common: Sequence[ClassName] = sorted(self._common(texts))
        if kind.kind in WIDTHS:
            found, common = sorted(map(int, texts.distinct)), sorted(map(int, common))
        counts_up = found == list(range(len(found)))  # which tells of no person
        if not counts_up and len(common) < len(found) <= MOST_PROPOSED:
            raise _UnfitError(f"values of {self._few}; name all classes with --classes")
        if not 2 <= len(found) <= MOST_PROPOSED:
            told = {0: "no value in any row", 1: "one value in all rows"}.get(
                len(found), f"{len(found)} different values"
            )
            raise _UnfitError(f"{told}; name the public classes with --classes")
        if not counts_up:
            self._unconfirmed.append(name)
        return found


def _texts(rows: pa.Table, name: str) -> cells.Texts:
    """Return a column's texts, without words for missing values."""
    return cells.texts_of(cells.plain(rows[name])).without(cells.MISSING_WORDS)


def number_of(text: str, where: str) -> float:
    """Return a number that the user wrote."""
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInputError(f"{where}: not a number") from error


def spelt(name: str) -> str:
    """Return a column's name as an option takes it: in double quotes if it has a comma or =."""
    return repr(f'"{name}"' if {",", "="} & {*name} else name)
