"""Turns a table into the columns of a ``TableSchema``, only where nothing is lost by it.

Uploads and ``expunge dataset push`` both come here. Errors name row, column and the type of a
value, never the value. Texts of numbers, dates and truth are read, because CSV has nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.domain.schema import MOST_CELL_BYTES, WIDTHS, ColumnType, TableSchema
from app.registry.datasets.columns.arrays import as_array, is_array
from app.registry.datasets.columns.cells import (
    MISSING_WORDS,
    column_named,
    invalid_in_words,
    is_text,
    kind_in_words,
    numbers_alone,
    plain,
)
from app.registry.datasets.columns.encoding import ids_of
from app.registry.datasets.columns.problems import Problems

_ARROW: Final = {
    **{kind: pa.type_for_alias(kind) for kind in WIDTHS},
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
}
_WHOLE: Final = r"^(?:\+?([0-9]+)|(-[0-9]+))(\.0*)?$"
_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INTEGER: Final = r"^-?[0-9]+$"
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_MOMENT: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([ T][0-9]{2}(:?[0-9]{2}(:?[0-9]{2}(\.[0-9]{1,6})?)?)?([zZ]|[+-][0-9]{2}(:?[0-9]{2})?)?)?$"
)
_ZONED: Final = r"[0-9]([zZ]|[+-][0-9]{2}:?[0-9]{2})$"
_UTC: Final = pa.timestamp("us", "UTC")
Marks = npt.NDArray[np.bool_]
Cast = Callable[[pa.Array], pa.Array]


class _UnfitError(Exception):
    """No cell of a column's type can be what is expected."""


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the type in which a column is kept."""
    item = _ARROW[kind.kind]
    if not kind.is_list:
        return item
    return pa.list_(item) if kind.length is None else pa.list_(item, kind.length)


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of ``typed_rows``: ids, then what is kept."""
    ids = [(name, pa.string()) for name in (schema.record_id, schema.subject_id) if name]
    return pa.schema([*ids, *kept_schema(schema)])


def kept_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of shards, as far as they were stored under this schema."""
    return pa.schema([(name, arrow_type(kind)) for name, kind in schema.columns])


def typed_rows(
    table: pa.Table | pa.RecordBatch, schema: TableSchema, problems: Problems
) -> pa.RecordBatch:
    """Return the rows in the columns of ``arrow_schema``; other columns are left out.

    A column that may be without values may be missing, too. Faults go to ``problems``, and faulty
    values become arbitrary ones.
    """
    columns = [ids_of(table, schema.record_id, problems, required=True)]
    if schema.subject_id is not None:
        columns.append(ids_of(table, schema.subject_id, problems, required=False))
    for name, kind in schema.columns:
        found = _Column(name, kind, problems).read(table)
        columns.append(found.cast(arrow_type(kind)) if pa.types.is_null(found.type) else found)
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))


def nulls_of(column: pa.Array, kind: ColumnType, *, name: str, problems: Problems) -> int:
    """Return how many cells of a column have no value; those not of this type are problems."""
    return int(_Column(name, kind, problems).read(pa.table({name: column})).null_count)


@dataclass(frozen=True)
class _Column:
    """A column to read; what is wrong goes to ``problems``."""

    name: str
    kind: ColumnType
    problems: Problems

    def read(self, table: pa.Table | pa.RecordBatch) -> pa.Array:
        nothing = pa.nulls(table.num_rows, arrow_type(self.kind))
        if self.kind.nullable and self.name not in table.schema.names:
            return nothing
        column = column_named(table, self.name, self.problems)
        if column is None:
            return nothing
        try:
            column.validate(full=True)
            found, lossy = (self._lists if self.kind.is_list else self._scalars)(column)
        except pa.ArrowInvalid:
            reason = invalid_in_words(column.type, wanted=self.kind)
            self.problems.add(None, self.name, reason)
            return nothing
        except _UnfitError:
            reason = f"{kind_in_words(column.type)}, where {self.kind} is expected"
            self.problems.add(None, self.name, reason)
            return nothing
        if not self.kind.nullable and found.null_count:
            self._fault(
                as_array(found.is_null()) & ~lossy, f"is missing, and {self.kind} must be there"
            )
        return found

    def _scalars(self, column: pa.Array) -> tuple[pa.Array, Marks]:
        found, lossy = _converted(column, self.kind.kind)
        self._fault(lossy, self._lossy(column.type))
        if self.kind.kind in ("string", "binary"):
            self._fault_large(as_array(pc.fill_null(pc.binary_length(found), 0)))
        return found, lossy

    def _lossy(self, kind: pa.DataType) -> str:
        return f"{kind_in_words(kind)} that is not {self.kind.kind} without loss"

    def _lists(self, column: pa.Array) -> tuple[pa.Array, Marks]:
        none = np.zeros(len(column), dtype=np.bool_)
        if pa.types.is_null(column.type):
            return pa.nulls(len(column), arrow_type(self.kind)), none
        lists = _storage(column)
        absent = as_array(lists.is_null())
        lengths = as_array(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
        lengths[absent] = 0
        row_of = np.repeat(np.arange(len(lists)), lengths)
        flat = pc.list_flatten(lists)
        items, lossy = _converted(flat, self.kind.kind)
        self._fault(self._rows(row_of, lossy, len(lists)), "an item is " + self._lossy(flat.type))
        null = as_array(items.is_null()) & ~lossy
        self._fault(self._rows(row_of, null, len(lists)), "a list in which an item is missing")
        sizes = _item_sizes(items)
        self._fault_large(np.bincount(row_of, weights=sizes, minlength=len(lists)))
        if self.kind.length is None:
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
            return pa.ListArray.from_arrays(offsets, items, mask=pa.array(absent)), none
        wrong = (lengths != self.kind.length) & ~absent
        self._fault(wrong, f"a list that has not {self.kind.length} items")
        if wrong.any():
            return pa.nulls(len(lists), arrow_type(self.kind)), np.ones_like(wrong)
        return _fixed(items, absent, self.kind.length), none

    def _rows(self, row_of: npt.NDArray[np.int64], faulty: Marks, count: int) -> Marks:
        return np.bincount(row_of[faulty], minlength=count) > 0

    def _fault_large(self, sizes: npt.NDArray[Any]) -> None:
        self._fault(sizes > MOST_CELL_BYTES, f"has more than {MOST_CELL_BYTES} bytes")

    def _fault(self, faulty: Marks, reason: str) -> None:
        self.problems.add_where(faulty, self.name, reason)


def _storage(column: pa.Array) -> pa.Array:
    kind = column.type
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation not in (None, list(range(len(kind.shape)))):
            raise _UnfitError
        return column.storage
    if not is_array(kind) or pa.types.is_map(kind):
        raise _UnfitError
    return column


def _fixed(items: pa.Array, absent: Marks, length: int) -> pa.Array:
    """Return lists of one length; Arrow keeps items of absent ones, too."""
    present = as_array(pc.fill_null(items, 0)).reshape(-1, length)
    whole = np.zeros((len(absent), length), dtype=present.dtype)
    whole[~absent] = present
    flat = pa.array(whole.reshape(-1), items.type)
    return pa.FixedSizeListArray.from_arrays(flat, length, mask=pa.array(absent))


def _item_sizes(items: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_string(items.type):
        return as_array(pc.fill_null(pc.binary_length(items), 0))
    return np.full(len(items), max(1, items.type.bit_width // 8))


def _converted(column: pa.Array, kind: str) -> tuple[pa.Array, Marks]:
    """Return the cells as ``kind``, null where they are missing, and which ones would be lost."""
    column = plain(column)
    if kind in WIDTHS and pa.types.is_decimal(column.type):  # all its digits, as CSV has them
        column = column.cast(pa.string())
    source = column.type
    if pa.types.is_null(source):
        return pa.nulls(len(column), _ARROW[kind]), np.zeros(len(column), dtype=np.bool_)
    if is_text(source):
        return _of_text(column.cast(pa.string()), kind)
    if kind in WIDTHS and (pa.types.is_integer(source) or pa.types.is_floating(source)):
        return _of_numbers(column, kind)
    if kind == "bool" and pa.types.is_integer(source):
        lossy = _unless(pc.is_in(column, pa.array([None, 0, 1], source)))
        return column.cast(pa.bool_()), lossy
    if kind == "timestamp" and pa.types.is_timestamp(source):
        return _checked(column, _moments)
    fits = {
        "bool": pa.types.is_boolean,
        "string": _is_whole,
        "binary": lambda source: (
            source in (pa.binary(), pa.large_binary()) or pa.types.is_fixed_size_binary(source)
        ),
        "date": pa.types.is_date,
    }.get(kind)
    if fits is None or not fits(source):
        raise _UnfitError
    return _checked(column, lambda cells: cells.cast(_ARROW[kind]))


def _of_numbers(column: pa.Array, kind: str) -> tuple[pa.Array, Marks]:
    if column.type == _ARROW[kind] and (pa.types.is_integer(column.type) or _is_finite(column)):
        return column, np.zeros(len(column), dtype=np.bool_)
    if pa.types.is_floating(column.type):
        column = column.cast(pa.float64())
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, pa.float64()), column)
    if not kind.startswith("float"):
        return _checked(column, lambda cells: cells.cast(_ARROW[kind]))
    wide, lossy = _checked(column, lambda cells: cells.cast(pa.float64()))
    found = wide.cast(_ARROW[kind], safe=False)
    again = found.cast(pa.float64())
    return found, lossy | _unless(pc.and_(pc.equal(again, wide), pc.is_finite(again)))


def _of_text(column: pa.Array, kind: str) -> tuple[pa.Array, Marks]:
    if kind == "binary":
        raise _UnfitError
    quick = column if kind == "string" else _quickly(column, kind)
    if quick is not None:
        return quick, np.zeros(len(column), dtype=np.bool_)
    trimmed = pc.utf8_trim_whitespace(column)
    absent = pc.is_in(trimmed, pa.array([None, "", *MISSING_WORDS]))
    trimmed = pc.if_else(absent, pa.scalar(None, pa.string()), trimmed)
    if kind == "timestamp":
        return _chosen(trimmed, _MOMENT, _moments_of_text)
    if kind == "bool":
        return _chosen(pc.utf8_lower(trimmed), "^(true|false|0|1)$", lambda c: c.cast(pa.bool_()))
    if kind == "date":
        return _chosen(trimmed, _DATE, lambda cells: cells.cast(pa.date32()))
    if kind.startswith("float"):
        wide, lossy = _chosen(trimmed, _NUMBER, lambda cells: cells.cast(pa.float64()))
        found = wide.cast(_ARROW[kind], safe=False)
        return found, lossy | _unless(pc.is_finite(found.cast(pa.float64())))
    whole = pc.replace_substring_regex(trimmed, _WHOLE, r"\1\2")
    return _chosen(whole, _INTEGER, lambda cells: cells.cast(_ARROW[kind]))


def _quickly(column: pa.Array, kind: str) -> pa.Array | None:
    """Return texts as numbers, if it takes no look at single ones to see that they are such."""
    numbers = numbers_alone(column) if kind in WIDTHS else None
    if numbers is None:
        return None
    if kind.startswith("float"):
        found = numbers.cast(_ARROW[kind], safe=False)
        return found if _is_finite(found) else None
    try:
        return column.cast(_ARROW[kind])
    except pa.ArrowInvalid:
        return None


def _is_finite(column: pa.Array) -> bool:
    return bool(pc.all(pc.is_finite(column.cast(pa.float64())), min_count=0).as_py())


def _chosen(column: pa.Array, pattern: str, cast: Cast) -> tuple[pa.Array, Marks]:
    """Convert the texts of a form; the others would be lost, which is told here at once."""
    fits = pc.match_substring_regex(column, pattern)
    found, lossy = _checked(pc.if_else(fits, column, pa.scalar(None, pa.string())), cast)
    return found, lossy | _unless(fits)


def _checked(column: pa.Array, cast: Cast) -> tuple[pa.Array, Marks]:
    """Convert cells by a cast that refuses a whole array; find the cells that it refuses."""
    try:
        return cast(column), np.zeros(len(column), dtype=np.bool_)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return cast(pa.nulls(1, column.type)), np.ones(1, dtype=np.bool_)
    middle = len(column) // 2
    halves = [_checked(column[:middle], cast), _checked(column[middle:], cast)]
    return pa.concat_arrays([each for each, _ in halves]), np.concatenate([m for _, m in halves])


def _unless(fits: pa.Array) -> Marks:
    """Return where a condition does not hold; a missing value counts as one that does."""
    return ~as_array(pc.fill_null(fits, fill_value=True))


def _moments(column: pa.Array) -> pa.Array:
    """Return moments in UTC; those without a zone are taken for such."""
    zone = column.type.tz
    return column.cast(_UTC if zone else pa.timestamp("us")).cast(pa.timestamp("us"))


def _moments_of_text(column: pa.Array) -> pa.Array:
    zoned = pc.match_substring_regex(column, _ZONED)
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, column, nothing).cast(_UTC).cast(pa.timestamp("us"))
    without = pc.if_else(zoned, nothing, column).cast(pa.timestamp("us"))
    return pc.coalesce(with_zone, without)


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))
