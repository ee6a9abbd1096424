"""Proposes the schema of a dataset from a table: for each column, what its cells are."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.domain.errors import InvalidInputError, TableError
from app.domain.schema import ITEMS, SCALARS, WIDTHS, ColumnType, TableSchema
from app.registry.datasets.columns.cells import (
    has_leading_zeros,
    invalid_in_words,
    kind_in_words,
    numbers_alone,
    numbers_of,
    plain,
)
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.proposal import spelt
from app.registry.datasets.columns.sources import IdsCheck, Source
from app.registry.datasets.columns.typed import arrow_type, nulls_of

_OF_TEXT: Final = ("int64", "float64", "bool", "date", "timestamp")
"""What the texts of a CSV may stand for, the narrowest first."""
_CODE: Final = r"^\s*(\+[0-9][0-9 ()/-]{5,}$|-?0[0-9])"
_THOUSANDS: Final = r"^\s*[+-]?[0-9]{1,3}(,[0-9]{3})+\s*$"
_DECIMAL_COMMA: Final = r"^\s*[+-]?[0-9]+,[0-9]+\s*$"


def proposed_schema(
    source: Source,
    *,
    record_id: str | None = None,
    subject_id: str | None = None,
    drop: Collection[str] = (),
    text: Collection[str] = (),
    held: TableSchema | None = None,
) -> TableSchema:
    """Return a schema that all rows of a table fit, whose ids are checked, too.

    Each of its columns allows rows without a value, which later files may have.

    Args:
        source: the table.
        record_id: the column of the records' ids; by default ``record_id``, or pandas' index.
        subject_id: the column of the persons' ids; by default ``subject_id``, if there is one.
        drop: columns that are not kept.
        text: columns of a CSV that are kept as text, whatever they look like.
        held: what a dataset has already, of which the schema is then the least alteration.

    Raises:
        TableError: a column has no type, or ids are faulty; it names file, row and column.
    """
    file, types = source.files[0], source.types
    for name in (record_id, subject_id, *drop, *text):
        if name is not None and name not in types:
            raise InvalidInputError(f"{source.name} has no column {name!r}")
    record_id = record_id or ("record_id" if "record_id" in types else file.index)
    if record_id is None:
        raise InvalidInputError("name the column of the records' ids with --record-id")
    if subject_id is None and "subject_id" in types:
        subject_id = "subject_id"
    left_out = {record_id, subject_id, file.index, *drop}
    kinds = {} if held is None else dict(held.columns)
    columns = [
        _Held(source, name, kinds[name])
        if name in kinds
        else _Column(source, name, kind, is_text=file.kind != "CSV" or name in text)
        for name, kind in types.items()
        if name not in left_out
    ]
    ids, problems = IdsCheck(source, record_id, subject_id), Problems()
    for first, part in source.parts():
        problems.first = first
        ids.check(part, problems)
        for column in columns:
            column.add(first, part)
    found = {column.name: column.type() for column in columns}
    ids.find_repeated(problems)
    with source.places():
        problems.raise_any()
    return TableSchema(tuple((kinds | found).items()), record_id, subject_id)


class _Held:
    """A column of a dataset, and which of the types that it may get hold a file's cells."""

    def __init__(self, source: Source, name: str, kind: ColumnType) -> None:
        self.name = name
        self._source = source
        self._nullable = kind.nullable
        self._fits = [_Fit(name, each) for each in (kind, *kind.wider)]

    def add(self, first: int, part: pa.Table) -> None:
        """Look at the next rows."""
        column = plain(part[self.name])
        for fit in self._fits:
            if fit.problems.none:
                fit.add(first, column)

    def type(self) -> ColumnType:
        """Return the narrowest of these types; ``TableError`` if there is none."""
        for fit in self._fits:
            if fit.problems.none:
                return replace(fit.kind, nullable=self._nullable or fit.nulls > 0)
        with self._source.places():
            self._fits[0].problems.raise_any()
        raise AssertionError  # it has problems


class _Column:
    """A column, and which types its cells may have after those rows that were looked at."""

    def __init__(self, source: Source, name: str, kind: pa.DataType, *, is_text: bool) -> None:
        self.name = name
        self._source = source
        self._kind = kind
        self._is_text = is_text
        self._fits = [_Fit(name, each) for each in _candidates(kind, is_csv=not is_text)]
        self._rows = self._nulls = self._numbers = 0
        self._commas = self._thousands = self._words = self._first_word = 0

    def add(self, first: int, part: pa.Table) -> None:
        """Look at the next rows."""
        column = plain(part[self.name])
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self._fault(invalid_in_words(column.type)) from error
        self._rows += len(column)
        self._nulls += column.null_count
        is_numbers = not self._is_text and numbers_alone(column) is not None
        if not self._is_text:
            self._look_at_texts(first, column, is_numbers=is_numbers)
        for fit in self._fits:
            if is_numbers and fit.kind.kind in ("float64", "string"):  # either holds them all
                fit.nulls += column.null_count
            elif fit.problems.none or fit is self._fits[-1]:
                fit.add(first, column)

    def _look_at_texts(self, first: int, column: pa.Array, *, is_numbers: bool) -> None:
        if is_numbers:
            self._numbers += len(column) - column.null_count
            if has_leading_zeros(column):
                self._keep_texts()
            return
        if pc.any(pc.match_substring_regex(column, _CODE)).as_py():
            self._keep_texts()
            return
        found = numbers_of(column)
        self._numbers += int(np.count_nonzero(~found.missing))
        in_thousands = pc.match_substring_regex(column, _THOUSANDS)
        with_comma = pc.or_(in_thousands, pc.match_substring_regex(column, _DECIMAL_COMMA))
        self._commas += pc.sum(with_comma).as_py() or 0
        self._thousands += pc.sum(in_thousands).as_py() or 0
        if not self._words and found.faulty.any():
            self._first_word = first + int(np.argmax(found.faulty))
        self._words += int(np.count_nonzero(found.faulty))

    def _keep_texts(self) -> None:
        """Let texts that look like postcodes or telephone numbers be no numbers."""
        self._is_text = True
        self._fits = self._fits[-1:]

    def type(self) -> ColumnType:
        """Return the narrowest type of all cells; ``TableError`` if there is none."""
        if self._nulls == self._rows:
            return ColumnType("string", nullable=True)
        if not self._is_text:
            self._require_numbers()
        for fit in self._fits:
            if fit.problems.none and fit.nulls < self._rows:
                return fit.kind
        for fit in self._fits[-1:]:
            if fit.nulls == self._rows:
                fit.problems.add(None, self.name, "holds no values")
            with self._source.places():
                fit.problems.raise_any()
        held = kind_in_words(self._kind)
        raise self._fault(f"{held}, which no type of column holds; see --drop")

    def _require_numbers(self) -> None:
        """Refuse single texts in a column that is mostly numbers, and numbers with commas."""
        if 2 * self._commas > self._numbers and self._thousands == self._commas:
            raise self._fault(
                "a comma before three digits each: write thousands without it, or pass "
                "--decimal , if it begins decimals"
            )
        if 2 * self._commas > self._numbers:
            raise self._fault("numbers with a decimal comma; pass --decimal ,")
        if self._words and 2 * self._words < self._numbers:
            more = f" (and in {self._words - 1} more)" if self._words > 1 else ""
            place = self._source.place(self._first_word)
            raise TableError(
                [
                    f"{place}, column {self.name!r}: text, where a number is expected{more}; "
                    f"--text {spelt(self.name)} keeps all cells as text"
                ]
            )

    def _fault(self, reason: str) -> TableError:
        return TableError([f"{self._source.name}: column {self.name!r}: {reason}"])


class _Fit:
    """Whether a type holds a column's cells.

    Attributes:
        kind: the type, which allows rows without a value.
        problems: the cells that it does not hold.
        nulls: how many cells are missing in it.
    """

    def __init__(self, name: str, kind: ColumnType) -> None:
        self._name = name
        self.kind = replace(kind, nullable=True)
        self.problems = Problems()
        self.nulls = 0

    def add(self, first: int, column: pa.Array) -> None:
        """Look at the next cells."""
        self.problems.first = first
        self.nulls += nulls_of(column, self.kind, name=self._name, problems=self.problems)


def _candidates(found: pa.DataType, *, is_csv: bool) -> list[ColumnType]:
    if isinstance(found, pa.FixedShapeTensorType):
        found = found.storage_type
    if pa.types.is_fixed_size_list(found):
        same = [k for k in WIDTHS if arrow_type(ColumnType(k)) == found.value_type]
        return [ColumnType(kind, is_list=True, length=found.list_size) for kind in same]
    if hasattr(found, "value_field"):
        kinds = [k for k in ITEMS if _holds(k, found.value_type)]
        kinds = ["int64", *kinds] if pa.types.is_decimal(found.value_type) else kinds
        return [ColumnType(kind, is_list=True) for kind in kinds]
    texts = _OF_TEXT if is_csv else ("int64",) if pa.types.is_decimal(found) else ()
    return [ColumnType(k) for k in (*texts, *(k for k in SCALARS if _holds(k, found)))]


def _holds(kind: str, found: pa.DataType) -> bool:
    """Return whether the type is made for such cells: not only able to hold them."""
    same = {
        "string": (pa.large_string(),),
        "binary": (pa.large_binary(),),
        "date": (pa.date64(),),
    }
    if kind == "timestamp":
        return bool(pa.types.is_timestamp(found))
    if kind == "binary" and pa.types.is_fixed_size_binary(found):
        return True
    if kind == "float64" and pa.types.is_decimal(found):
        return True
    return found == arrow_type(ColumnType(kind)) or found in same.get(kind, ())
