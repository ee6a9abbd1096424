"""Proposes the schema of a dataset from a table: for each column, what its cells are."""

from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.domain.errors import InvalidInputError, TableError
from app.domain.schema import ITEMS, SCALARS, WIDTHS, ColumnType, TableSchema
from app.registry.datasets.columns.cells import (
    invalid_in_words,
    kind_in_words,
    numbers_of,
    plain,
)
from app.registry.datasets.columns.proposal import spelt
from app.registry.datasets.columns.sources import Source
from app.registry.datasets.columns.typed import arrow_type, faults_of

_OF_TEXT: Final = ("int64", "float64", "bool", "date", "timestamp")
"""What the texts of a CSV may stand for, the narrowest first."""
_CODE: Final = r"^\s*(\+[0-9][0-9 ()/-]{5,}$|-?0[0-9])"
_DECIMAL_COMMA: Final = r"^\s*[+-]?[0-9]+,[0-9]+\s*$"


def proposed_schema(
    source: Source,
    *,
    record_id: str | None = None,
    subject_id: str | None = None,
    drop: Collection[str] = (),
    text: Collection[str] = (),
) -> TableSchema:
    """Return a schema that all rows of a table fit.

    Args:
        source: the table.
        record_id: the column of the records' ids; by default ``record_id``, or pandas' index.
        subject_id: the column of the persons' ids; by default ``subject_id``, if there is one.
        drop: columns that are not kept.
        text: columns of a CSV that are kept as text, whatever they look like.

    Raises:
        TableError: a column has no type; it names file, row and column.
    """
    names = source.table.column_names
    for name in (record_id, subject_id, *drop, *text):
        if name is not None and name not in names:
            raise InvalidInputError(f"{source.name} has no column {name!r}")
    record_id = record_id or ("record_id" if "record_id" in names else source.index)
    if record_id is None:
        raise InvalidInputError("name the column of the records' ids with --record-id")
    if subject_id is None and "subject_id" in names:
        subject_id = "subject_id"
    left_out = {record_id, subject_id, source.index, *drop}
    columns = [
        (name, _type_of(source, name, is_text=source.kind != "CSV" or name in text))
        for name in names
        if name not in left_out
    ]
    return TableSchema(tuple(columns), record_id, subject_id)


def _type_of(source: Source, name: str, *, is_text: bool) -> ColumnType:
    column = plain(source.table[name])
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        fault = invalid_in_words(column.type)
        raise TableError([f"{source.name}: column {name!r}: {fault}"]) from error
    if column.null_count == len(column):
        return ColumnType("string", nullable=True)
    is_text = is_text or _has_codes(column)
    if not is_text:
        _require_numbers(source, name, column)
    candidates = _candidates(column.type, is_csv=not is_text)
    for kind in candidates:
        for nullable in (False, True):
            candidate = ColumnType(kind.kind, kind.is_list, kind.length, nullable)
            if faults_of(column, candidate, name=name).none:
                return candidate
    for kind in candidates[-1:]:
        with source.places():
            candidate = ColumnType(kind.kind, kind.is_list, kind.length, nullable=True)
            faults_of(column, candidate, name=name).raise_any()
    held = kind_in_words(column.type)
    raise TableError(
        [f"{source.name}: column {name!r}: {held}, which no type of column holds; see --drop"]
    )


def _require_numbers(source: Source, name: str, column: pa.Array) -> None:
    """Refuse single texts in a column that is mostly numbers, and numbers with decimal commas."""
    found = numbers_of(column)
    present = int(np.count_nonzero(~found.missing))
    commas = pc.sum(pc.match_substring_regex(column, _DECIMAL_COMMA)).as_py() or 0
    if 2 * commas > present:
        raise TableError(
            [f"{source.name}: column {name!r}: numbers with a decimal comma; pass --decimal ,"]
        )
    faulty = int(np.count_nonzero(found.faulty))
    if faulty and 2 * faulty < present:
        more = f" (and in {faulty - 1} more)" if faulty > 1 else ""
        place = source.place(int(np.argmax(found.faulty)))
        raise TableError(
            [
                f"{place}, column {name!r}: text, where a number is expected{more}; --text "
                f"{spelt(name)} keeps all cells as text"
            ]
        )


def _has_codes(column: pa.Array) -> bool:
    """Return whether texts look like postcodes or telephone numbers, which are no numbers."""
    if not pa.types.is_string(column.type):
        return False
    return bool(pc.any(pc.match_substring_regex(column, _CODE)).as_py())


def _candidates(found: pa.DataType, *, is_csv: bool) -> list[ColumnType]:
    if isinstance(found, pa.FixedShapeTensorType):
        found = found.storage_type
    if pa.types.is_fixed_size_list(found):
        same = [k for k in WIDTHS if arrow_type(ColumnType(k)) == found.value_type]
        return [ColumnType(kind, is_list=True, length=found.list_size) for kind in same]
    if hasattr(found, "value_field"):
        kinds = [k for k in ITEMS if _holds(k, found.value_type)]
        return [ColumnType(kind, is_list=True) for kind in kinds]
    texts = _OF_TEXT if is_csv else ()
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
