"""Turns the columns of a table into what a network reads and learns, and into ids.

Training and predictions come here, so each row means the same to both.
Errors name row, column and the type of a value, never the value.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.domain.columns import (
    SPLINE_DEGREE,
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
from app.domain.ids import MAX_ID_LENGTH, OTHER_SPELLINGS, id_fault
from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec, RegressionSpec
from app.domain.tasks.spec import TaskSpec
from app.registry.datasets.columns.arrays import (
    array_fault,
    array_values,
    as_array,
    pixels_of,
    tokens_of,
)
from app.registry.datasets.columns.cells import (
    MISSING_WORDS,
    Texts,
    column_named,
    has_ids,
    has_numbers,
    has_texts,
    inexact_ids,
    invalid_in_words,
    is_text,
    kind_in_words,
    numbers_of,
    plain,
    texts_of,
)
from app.registry.datasets.columns.problems import Problems

NO_CLASS: Final = -100
"""In place of the class of a row that has none."""
_NUMBER: Final = "a number is"
_NO_RULE: Final = ", and the task has no rule for it: give its input"
_TOO_LARGE: Final = "a number too large for float32"


def features_of(table: pa.Table | pa.RecordBatch, inputs: InputColumns) -> npt.NDArray[Any]:
    """Return the features of all rows, of shape (n, inputs.width) and inputs.dtype."""
    with _all_cells(table) as cells:
        return cells.features(inputs)


def labels_of(table: pa.Table | pa.RecordBatch, rule: LabelColumn) -> npt.NDArray[np.int64]:
    """Return the class of each row, of shape (n,); ``NO_CLASS`` where it is missing."""
    with _all_cells(table) as cells:
        return cells.labels(rule)


def numbers_in(
    table: pa.Table | pa.RecordBatch,
    names: Sequence[str],
    *,
    least: float = -math.inf,
    most: float = math.inf,
    required: bool = False,
) -> npt.NDArray[np.float64]:
    """Return columns of numbers, or of yes and no, within bounds, of shape (n, columns).

    A row that lacks one of them is all NaN, unless each is ``required``.
    """
    with _all_cells(table) as cells:
        columns = [cells.numbers(name, least=least, most=most, required=required) for name in names]
    found = np.stack(columns, axis=1)
    found[np.isnan(found).any(axis=1)] = np.nan
    return found


def without_target(table: pa.Table | pa.RecordBatch, task: TaskSpec, problems: Problems) -> int:
    """Return how many rows have no target for a built-in task, which does not learn from them.

    Targets that it cannot read go to ``problems``.
    """
    if not set(task.target_columns) <= set(table.schema.names):
        return int(table.num_rows)
    cells, lacking = _Cells(table, problems), np.zeros(table.num_rows, dtype=bool)
    if isinstance(task, ClassificationSpec):
        lacking = cells.labels(task.target) == NO_CLASS
    elif isinstance(task, MultiLabelSpec | RegressionSpec):
        for name in task.target_columns:
            numbers = cells.numbers(name, least=-math.inf, most=math.inf, required=False)
            lacking |= np.isnan(numbers)
    return int(np.count_nonzero(lacking))


def ids_of(
    table: pa.Table | pa.RecordBatch, name: str, problems: Problems, *, required: bool
) -> pa.Array:
    """Return the ids of a column as texts.

    Faults go to ``problems``, and faulty values become arbitrary ones.
    """
    return _Cells(table, problems).ids(name, required=required)


@dataclass(frozen=True)
class _Cells:
    """A table's columns; what is wrong goes to ``problems``."""

    table: pa.Table | pa.RecordBatch
    problems: Problems

    def features(self, inputs: InputColumns) -> npt.NDArray[Any]:
        features = np.zeros((self.table.num_rows, inputs.width), dtype=inputs.dtype)
        start = 0
        for rule in inputs.columns:
            part = features[:, start : start + rule.width]
            self._fill(rule, part)
            if isinstance(rule, ArrayColumn) and inputs.only is None:
                offset, scale = rule.scaling
                with np.errstate(over="ignore"):
                    part[:] = (part - offset) * scale
                self._fault(np.any(~np.isfinite(part), axis=1), rule.name, _TOO_LARGE)
            start += rule.width
        return features

    def labels(self, rule: LabelColumn) -> npt.NDArray[np.int64]:
        texts = self._texts(rule.name, listed=map(str, rule.classes))
        if texts is None:
            return np.zeros(self.table.num_rows, dtype=np.int64)
        labels, unknown = texts.mapped(_place_among(rule.classes))
        labels[texts.missing] = NO_CLASS
        reason = f"{self._kind(rule.name)} that is not the name of a class"
        self._fault(unknown, rule.name, reason)
        return labels

    def numbers(
        self, name: str, *, least: float, most: float, required: bool
    ) -> npt.NDArray[np.float64]:
        column = self._numeric(name)
        if column is None:
            return np.zeros(self.table.num_rows)
        found = numbers_of(column)
        self._fault(found.faulty, name, f"text, where {_NUMBER} expected")
        if required:
            self._fault(found.missing, name, "is missing")
        present = ~found.missing & ~found.faulty
        self._fault(present & np.isinf(found.values), name, "an infinite number")
        outside = present & ((found.values < least) | (found.values > most))
        self._fault(outside, name, f"must lie between {least:g} and {most:g}")
        return found.values

    def ids(self, name: str, *, required: bool) -> pa.Array:
        if self.table.schema.names.count(name) == 1:
            column = plain(self.table.column(name))
            is_whole = pa.types.is_integer(column.type) and not (required and column.null_count)
            if is_whole or _are_ids(column, required=required):
                return column.cast(pa.string())
        column = self._column(name, has_ids, "text or a whole number is")
        if column is None:
            return pa.nulls(self.table.num_rows, pa.string())
        texts = texts_of(column)
        if required:
            self._fault(texts.missing, name, "is missing")
        if not is_text(column.type) and has_numbers(column.type):
            reason = f"{kind_in_words(column.type)} that is not whole, or too large to be exact"
            self._fault(inexact_ids(column), name, reason)
        faults = [id_fault(text) for text in texts.distinct]
        for reason in dict.fromkeys(fault for fault in faults if fault is not None):
            faulty = np.array([fault == reason for fault in faults] + [False])
            self._fault(faulty[texts.codes], name, reason)
        spelt = np.array([*texts.distinct, None], dtype=object)[texts.codes]
        return pa.array(spelt, pa.string())

    def _fill(self, rule: Column, features: npt.NDArray[Any]) -> None:
        match rule:
            case NumberColumn():
                self._fill_numbers(rule, features)
            case CategoryColumn():
                self._fill_categories(rule, features)
            case ArrayColumn():
                self._fill_arrays(rule, features)
            case TextColumn():
                self._fill_tokens(rule, features)
            case ImageColumn():
                self._fill_pixels(rule, features)

    def _fill_numbers(self, rule: NumberColumn, features: npt.NDArray[Any]) -> None:
        column = self._numeric(rule.name)
        if column is None:
            return
        found = numbers_of(column)
        self._fault(found.faulty, rule.name, f"text, where {_NUMBER} expected")
        values = found.values
        if rule.missing is None:
            self._fault(found.missing, rule.name, f"is missing{_NO_RULE} 'missing'")
        else:
            values = np.where(found.missing, rule.missing, values)
        infinite = np.isinf(values)
        self._fault(infinite, rule.name, "an infinite number")
        if rule.low is not None and rule.high is not None:
            values = (np.clip(values, rule.low, rule.high) - rule.low) / (rule.high - rule.low)
        if rule.knots:
            values = np.clip(values, rule.knots[0], rule.knots[-1])
        if (rule.offset, rule.scale) != (0, 1):
            with np.errstate(over="ignore"):
                values = (values - rule.offset) * rule.scale
        large = np.abs(values) > np.finfo(np.float32).max
        self._fault(large & ~infinite, rule.name, _TOO_LARGE)
        if rule.knots:
            _fill_splines(np.nan_to_num(values), rule, features)
        else:
            features[:, 0] = np.where(large, 0, values)
        if rule.flag_missing:
            features[:, -1] = found.missing

    def _fill_categories(self, rule: CategoryColumn, features: npt.NDArray[Any]) -> None:
        texts = self._texts(rule.name, listed=rule.values)
        if texts is None:
            return
        found, unknown = texts.mapped(_place_among(rule.values))
        missing = texts.missing
        if rule.other:
            found[unknown] = len(rule.values)
        else:
            reason = f"{self._kind(rule.name)} that is not a listed value{_NO_RULE} 'other'"
            self._fault(unknown, rule.name, reason)
        if rule.missing is not None:
            found[missing] = rule.values.index(rule.missing)
        elif rule.other:
            found[missing] = len(rule.values)
        else:
            self._fault(missing, rule.name, f"is missing{_NO_RULE} 'missing' or 'other'")
        features[np.arange(len(found)), found] = 1

    def _fill_arrays(self, rule: ArrayColumn, features: npt.NDArray[Any]) -> None:
        column = column_named(self.table, rule.name, self.problems)
        if column is None:
            return
        fault = array_fault(column.type)
        if fault is not None:
            self.problems.add(None, rule.name, f"{kind_in_words(column.type)}: {fault}")
            return
        values = array_values(
            column,
            name=rule.name,
            size=rule.width,
            dtype=rule.dtype,
            vocabulary=rule.vocabulary,
            problems=self.problems,
        )
        if values is not None:
            features[:] = values

    def _fill_tokens(self, rule: TextColumn, features: npt.NDArray[Any]) -> None:
        column = self._column(rule.name, is_text, "text is")
        if column is None:
            return
        self._fault(as_array(column.is_null()), rule.name, "is missing")
        features[:] = tokens_of(pc.fill_null(column, ""), rule)

    def _fill_pixels(self, rule: ImageColumn, features: npt.NDArray[Any]) -> None:
        column = self._column(rule.name, _is_file, "the bytes of an image are")
        if column is None:
            return
        missing = as_array(column.is_null())
        self._fault(missing, rule.name, "is missing")
        features[:], faulty = pixels_of(pc.fill_null(column, b""), rule)
        self._fault(faulty & ~missing, rule.name, "is no JPEG or PNG image, or has too many pixels")

    def _numeric(self, name: str) -> pa.Array | None:
        """Return a column of numbers, which true and false are, too; see ``_column``."""
        column = self._column(name, lambda kind: has_numbers(kind) or kind == pa.bool_(), _NUMBER)
        if column is None:
            return None
        if is_text(column.type):  # as a CSV has them
            words = pc.utf8_lower(pc.utf8_trim_whitespace(column))
            truth = pc.index_in(words, pa.array(["false", "true"], words.type))
            return pc.coalesce(truth.cast(column.type), column)
        return column.cast(pa.int8()) if column.type == pa.bool_() else column

    def _texts(self, name: str, *, listed: Any) -> Texts | None:  # noqa: ANN401 - an iterable
        """Return a column's texts; words for a missing value are missing unless listed."""
        column = self._column(name, has_texts, "text or a whole number is")
        return (
            None if column is None else texts_of(column).without(MISSING_WORDS.difference(listed))
        )

    def _column(
        self, name: str, fits: Callable[[pa.DataType], bool], expected: str
    ) -> pa.Array | None:
        """Return a column of valid cells, of a type that fits; None, and a problem, otherwise."""
        column = column_named(self.table, name, self.problems)
        if column is None:
            return None
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            self.problems.add(None, name, invalid_in_words(column.type))
            return None
        if fits(column.type):
            return column
        kind = kind_in_words(column.type)
        self.problems.add(None, name, f"{kind}, where {expected} expected")
        return None

    def _kind(self, name: str) -> str:
        return kind_in_words(plain(self.table.column(name)).type)

    def _fault(self, faulty: npt.NDArray[np.bool_], column: str, reason: str) -> None:
        self.problems.add_where(faulty, column, reason)


@contextmanager
def _all_cells(table: pa.Table | pa.RecordBatch) -> Iterator[_Cells]:
    problems = Problems()
    yield _Cells(table, problems)
    problems.raise_any()


def _fill_splines(
    x: npt.NDArray[np.float64], rule: NumberColumn, features: npt.NDArray[Any]
) -> None:
    """Put the values at x of a column's B-splines into zeros [n, splines], by Cox and de Boor."""
    every, last = np.array(rule.all_knots), len(rule.knots) - 1
    # The last knot belongs to the interval before it.
    place = np.minimum(np.searchsorted(rule.knots, x, side="right"), last) + SPLINE_DEGREE - 1
    found = [np.ones(len(x))]
    for degree in range(1, SPLINE_DEGREE + 1):
        lower, found = found, [np.zeros(len(x)) for _ in range(degree + 1)]
        for each, value in enumerate(lower):
            start, end = every[place - degree + 1 + each], every[place + 1 + each]
            share = value / (end - start)
            found[each] += (end - x) * share
            found[each + 1] += (x - start) * share
    for each, value in enumerate(found):
        features[np.arange(len(x)), place - SPLINE_DEGREE + each] = value


def _is_file(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _are_ids(column: pa.Array, *, required: bool) -> bool:
    """Return whether a column has ids as they are kept: nothing to trim, to spell, to refuse."""
    if not is_text(column.type) or (required and column.null_count):
        return False
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    lengths = pc.binary_length(column)
    fit = (
        pc.ascii_is_printable(column),  # so it is NFC, and only spaces may be trimmed
        pc.equal(column, pc.ascii_trim_whitespace(column)),
        pc.and_(pc.greater(lengths, 0), pc.less_equal(lengths, MAX_ID_LENGTH)),
        pc.invert(pc.match_substring_regex(column, OTHER_SPELLINGS)),
    )
    return all(pc.all(each, min_count=0).as_py() for each in fit)


def _place_among(names: Sequence[ClassName]) -> Callable[[str], int | None]:
    """Return the function from a cell's text to its place; truth is written in any case."""
    words = {str(name).lower(): place for place, name in enumerate(names)}
    if words.keys() <= TRUTH and len(words) == len(names):
        return lambda text: words.get(text.lower())
    places = {str(name): place for place, name in enumerate(names)}
    return places.get
