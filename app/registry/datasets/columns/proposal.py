"""Proposes an encoding for a table: what its columns are, with the constants that the user gave.

A schema outlives every record and is public. So a value that only the file knows is never listed by
itself: the user lists it, or confirms those that many rows share.
"""

import re
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.domain.columns import ArrayColumn, CategoryColumn, ClassName, Column, NumberColumn
from app.domain.encoding import LabelColumn, TableEncoding
from app.domain.errors import InvalidInputError
from app.registry.datasets.columns import cells
from app.registry.datasets.columns.arrays import array_fault, is_array
from app.registry.datasets.columns.choices import Choices, spelt
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.sources import Source

LEAST_ROWS: Final = 10
"""A value of fewer rows, or persons, is not proposed: it may identify one of them."""

MOST_PROPOSED: Final = 100
"""A column with more different values is free text, or an id."""

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{1,2}:\d\d")
_DECIMAL_COMMA: Final = re.compile(r"[+-]?\d+,\d+")
_TRUTH: Final = frozenset({"true", "false"})


@dataclass(frozen=True)
class Proposal:
    """An encoding for a table.

    Attributes:
        encoding: the rules.
        unconfirmed: columns whose listed values the user did not give, but the file.
        ignored: columns of the file that are not read.
    """

    encoding: TableEncoding
    unconfirmed: Sequence[str]
    ignored: Sequence[str]


def proposed(source: Source, choices: Choices) -> Proposal:
    """Return an encoding with the user's choices; errors say what to do."""
    with source.places():
        return _Proposer(source, choices).proposal()


class _UnfitError(Exception):
    """A column cannot be read as it is; the reason says what to do."""


class _Proposer:
    def __init__(self, source: Source, choices: Choices) -> None:
        self._source = source
        self._choices = choices
        self._problems = Problems()
        self._unconfirmed: list[str] = []
        self._persons: npt.NDArray[np.int64] | None = None

    def proposal(self) -> Proposal:
        names = self._source.table.column_names
        label, record_id, subject_id = self._roles(names)
        if subject_id is not None and cells.has_texts(self._column(subject_id).type):
            self._persons = cells.texts_of(self._column(subject_id)).codes
        taken = {label, record_id, subject_id, *self._choices.drop}
        if self._source.index is not None:
            taken.add(self._source.index)
        chosen = self._choices.features or [name for name in names if name not in taken]
        columns: list[Column] = []
        classes: Sequence[ClassName] = ()
        for name in chosen:
            with self._noting(name):
                columns.append(self._choices.rules_of(self._rule(name)))
        with self._noting(label):
            classes = self._classes(label)
        self._problems.raise_any()
        if not columns:
            raise InvalidInputError("the table has no feature columns")
        encoding = TableEncoding(
            columns=tuple(columns),
            label=LabelColumn(name=label, classes=tuple(classes)),
            record_id=record_id,
            subject_id=subject_id,
        )
        used = {label, record_id, subject_id, *chosen}
        return Proposal(encoding, self._unconfirmed, [name for name in names if name not in used])

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except _UnfitError as error:
            self._problems.add(None, name, str(error))
        except pa.ArrowInvalid:
            kind = self._source.table.schema.field(name).type
            self._problems.add(None, name, cells.invalid_in_words(kind))

    def _roles(self, names: Sequence[str]) -> tuple[str, str, str | None]:
        for name in sorted(self._choices.named - set(names)):
            self._problems.add(None, name, "the table has no such column")
        self._problems.raise_any()
        label = self._choices.label or ("label" if "label" in names else None)
        if label is None:
            raise InvalidInputError("name the label's column with --label")
        record_id = self._choices.record_id or (
            "record_id" if "record_id" in names else self._source.index
        )
        if record_id is None:
            raise InvalidInputError(
                "name the column of the records' ids with --record-id; it may be that of --subject"
            )
        subject_id = self._choices.subject_id or ("subject_id" if "subject_id" in names else None)
        return label, record_id, subject_id

    def _column(self, name: str) -> pa.Array:
        return cells.plain(self._source.table[name])

    def _rule(self, name: str) -> Column:
        listed = self._choices.categories.get(name)
        if listed is not None:
            return CategoryColumn(name=name, values=listed.values, other=listed.other)
        column = self._column(name)
        if is_array(column.type):
            return _array(name, column)
        _require_cells(name, column)
        if _is_mostly_numbers(column):
            return self._number(name, column)
        return self._category(name, _texts(column))

    def _number(self, name: str, column: pa.Array) -> Column:
        if name not in self._choices.missing:
            advice = f"is missing; --missing {spelt(name)}=NUMBER puts a public constant there"
            self._problems.add_where(cells.numbers_of(column).missing, name, advice)
        return NumberColumn(name=name)

    def _category(self, name: str, texts: cells.Texts) -> Column:
        if {text.lower() for text in texts.distinct} <= _TRUTH:
            return CategoryColumn(name=name, values=tuple(sorted(texts.distinct)))
        if _most(texts, _DECIMAL_COMMA):
            raise _UnfitError("numbers with a decimal comma; pass --decimal ,")
        advice = f"--drop {spelt(name)}, or list its public values with --category"
        if len(texts.distinct) > MOST_PROPOSED:
            count = len(texts.distinct)
            raise _UnfitError(
                f"text with {count} different values; is it an id? Otherwise {advice}"
            )
        common = self._common(texts)
        if not common:
            raise _UnfitError(f"text, each value of {self._few}; {advice}")
        self._unconfirmed.append(name)
        return CategoryColumn(name=name, values=tuple(sorted(common)), other=True)

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

    def _classes(self, name: str) -> Sequence[ClassName]:
        if self._choices.class_count is not None:
            return range(self._choices.class_count)
        if self._choices.classes:
            return self._choices.class_names
        column = self._column(name)
        if not cells.has_texts(column.type):
            raise _UnfitError(f"{cells.kind_in_words(column.type)}, which cannot be a label")
        texts = _texts(column)
        if texts.distinct and {text.lower() for text in texts.distinct} <= _TRUTH:
            return (False, True)
        found: Sequence[ClassName] = sorted(texts.distinct)
        common: Sequence[ClassName] = sorted(self._common(texts))
        if _is_mostly_numbers(column):
            found, common = _whole_numbers(texts.distinct), _whole_numbers(self._common(texts))
        counts_up = found == list(range(len(found)))  # which tells of no person
        if not counts_up and len(common) < len(found) <= MOST_PROPOSED:
            raise _UnfitError(f"values of {self._few}; name all classes with --classes")
        if not 2 <= len(found) <= MOST_PROPOSED:
            count = len(texts.distinct)
            told = f"{count} different values" if count > 1 else "one value in all rows"
            raise _UnfitError(f"{told}; name the public classes with --classes")
        if not counts_up:
            self._unconfirmed.append(name)
        return found


def _require_cells(name: str, column: pa.Array) -> None:
    """Refuse a column without values, and one of dates or of a type that cannot be a feature."""
    texts = _texts(column) if cells.has_texts(column.type) else None
    if column.null_count == len(column) or (texts is not None and texts.missing.all()):
        raise _UnfitError(f"holds no values; leave it out with --drop {spelt(name)}")
    if pa.types.is_temporal(column.type) or (texts is not None and _most(texts, _DATE)):
        raise _UnfitError(
            f"dates or times; leave it out with --drop {spelt(name)}, or turn it into a number, "
            "such as an age"
        )
    if texts is None:
        raise _UnfitError(f"{cells.kind_in_words(column.type)}, which cannot be a feature")


def _array(name: str, column: pa.Array) -> Column:
    kind, shape = column.type, None
    fault = array_fault(kind)
    if fault is not None:
        raise _UnfitError(f"{cells.kind_in_words(kind)}: {fault}")
    if isinstance(kind, pa.FixedShapeTensorType):
        shape, kind = tuple(kind.shape), kind.storage_type
    if shape is None:
        first: Sized = next((value for value in column.slice(0, 100).to_pylist() if value), [])
        shape = (kind.list_size if isinstance(kind, pa.FixedSizeListType) else len(first),)
    if 0 in shape:
        raise _UnfitError("a list without elements")
    dtype = "uint8" if kind.value_type == pa.uint8() else "float32"
    return ArrayColumn(name=name, shape=shape, dtype=dtype)


def _whole_numbers(texts: Sequence[str]) -> list[int]:
    """Return the classes of a label of whole numbers."""
    numbers = [_number(text) for text in texts]
    if any(number is not None and not number.is_integer() for number in numbers):
        raise _UnfitError(
            "numbers with fractions; a model learns classes, and regression is not offered"
        )
    return sorted({int(number) for number in numbers if number is not None})


def _texts(column: pa.Array) -> cells.Texts:
    """Return a column's texts, without words for missing values."""
    return cells.texts_of(column).without(cells.MISSING_WORDS)


def _is_mostly_numbers(column: pa.Array) -> bool:
    """Return whether more than half of the values are numbers; the others are faults then."""
    if not cells.has_numbers(column.type):
        return False
    found = cells.numbers_of(column)
    return 2 * int(found.faulty.sum()) < int((~found.missing).sum())


def _most(texts: cells.Texts, pattern: re.Pattern[str]) -> bool:
    """Return whether more than half of the values begin as a pattern."""
    fits = np.array([bool(pattern.match(text)) for text in texts.distinct] + [False])
    return 2 * int(fits[texts.codes].sum()) > int((~texts.missing).sum())


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
