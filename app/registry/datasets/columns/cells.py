"""The cells of one column, as texts or numbers, however their file stores them.

CSV has only text, and one pipeline writes 3 where another writes 3.0 or "3". So a cell counts by
its meaning: as ``app.domain.ids`` spells it.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.domain.ids import EXACT_BELOW, NOTATIONS, Notation, normal_id
from app.registry.datasets.columns.arrays import as_array, is_array
from app.registry.datasets.columns.problems import Problems

MISSING_WORDS: Final = frozenset(
    {
        "#N/A",
        "#NA",
        "-NaN",
        "-nan",
        "<NA>",
        "?",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "None",
        "n/a",
        "nan",
        "null",
    }
)
"""Words for a missing value, as pandas reads them, and the archives of UCI."""

_WITHOUT_VIEWS: Final = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}
_NUMBER: Final = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


@dataclass(frozen=True)
class Texts:
    """A column of n cells as texts.

    Attributes:
        distinct: the different texts, in their one spelling.
        codes: int64, shape (n,): the index of each cell's text; -1 where it is missing.
    """

    distinct: tuple[str, ...]
    codes: npt.NDArray[np.int64]

    def mapped(
        self, target: Callable[[str], int | None]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return each cell's target, and which texts have none; 0 there and where it is missing."""
        found = [target(text) for text in self.distinct]
        targets = np.array([0 if each is None else each for each in found] + [0], dtype=np.int64)
        unknown = np.array([each is None for each in found] + [False])
        return targets[self.codes], unknown[self.codes]

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Which cells are missing."""
        return self.codes < 0

    def without(self, words: Collection[str]) -> "Texts":
        """Return the same cells, of which those with these texts are missing."""
        present = [text for text in self.distinct if text not in words]
        places = {text: place for place, text in enumerate(present)}
        targets = np.array([places.get(text, -1) for text in self.distinct] + [-1])
        return Texts(tuple(present), targets[self.codes])


def plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column in one piece, in a type that says only what its cells are.

    Arrow has many layouts for the same cells, and for most of them few functions: dictionaries,
    runs, views and extension types become what they stand for, in lists, too, and decimals integers
    if all are whole. Tensors and lists of one length stay what they are.
    """
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.nulls(0, whole.type)
    kind = whole.type
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType):
        return plain(whole.storage)
    if pa.types.is_dictionary(kind):
        return plain(whole.dictionary).take(whole.indices)
    if pa.types.is_run_end_encoded(kind):
        places = pa.array(np.arange(len(whole.values)))
        runs = pa.RunEndEncodedArray.from_arrays(whole.run_ends, places)
        return plain(whole.values).take(pc.run_end_decode(runs.slice(whole.offset, len(whole))))
    if kind in _WITHOUT_VIEWS:
        return whole.cast(_WITHOUT_VIEWS[kind])
    if pa.types.is_decimal(kind):
        return _whole_decimals(whole)
    return _plain_lists(whole) if is_array(kind) and not pa.types.is_map(kind) else whole


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a ``plain`` column; decimals stay such, since it depends on the cells."""
    if isinstance(kind, pa.FixedShapeTensorType | pa.FixedSizeListType) or pa.types.is_map(kind):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if is_array(kind):
        item = plain_type(kind.value_type)
        is_kept = item == kind.value_type and (
            pa.types.is_list(kind) or pa.types.is_large_list(kind)
        )
        return kind if is_kept else pa.large_list(item)
    return _WITHOUT_VIEWS.get(kind, kind)


def _whole_decimals(column: pa.Array) -> pa.Array:
    """Return whole numbers without a scale; if they are not, decimals of 256 bits."""
    wide = column.cast(pa.decimal256(76, max(0, column.type.scale)))
    for kind in (pa.int64(), pa.decimal256(76, 0)):
        with suppress(pa.ArrowInvalid):
            return wide.cast(kind)
    return wide


def _plain_lists(column: pa.Array) -> pa.Array:
    kind = column.type
    if isinstance(kind, pa.FixedShapeTensorType | pa.FixedSizeListType):
        return column  # whoever reads them takes their items apart
    found = plain(pc.list_flatten(column))
    if found.type == kind.value_type and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return column
    lengths = as_array(pc.fill_null(pc.list_value_length(column), 0))
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    return pa.LargeListArray.from_arrays(ends, found, mask=column.is_null())


def column_named(
    table: pa.Table | pa.RecordBatch, name: str, problems: Problems
) -> pa.Array | None:
    """Return a table's column in one piece; None, and a problem, unless it has one of the name."""
    count = table.schema.names.count(name)
    if count == 1:
        return plain(table.column(name))
    reason = "the table has no such column" if count == 0 else "the column occurs twice"
    problems.add(None, name, reason)
    return None


def kind_in_words(kind: pa.DataType) -> str:
    """Name a type of cells, for errors."""
    for fits, words in _WORDS:
        if fits(kind):
            return words
    return str(kind)


def invalid_in_words(kind: pa.DataType, *, wanted: object = None) -> str:
    """Say what is wrong with cells of a type that Arrow finds invalid, where one is ``wanted``."""
    if _holds_text(kind):
        return "must be UTF-8 text"
    found = f"{kind_in_words(kind)}, with cells that its type {kind} does not allow"
    return found if wanted is None else f"{found}, where {wanted} is expected"


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    items = (kind.field(place).type for place in range(kind.num_fields))
    return is_text(kind) or any(map(_holds_text, items))


def has_texts(kind: pa.DataType) -> bool:
    """Return whether ``texts_of`` reads cells of this type."""
    return is_text(kind) or _is_number(kind) or kind in (pa.bool_(), pa.null())


def has_ids(kind: pa.DataType) -> bool:
    """Return whether cells of this type may be ids: text, or numbers that are whole."""
    return kind != pa.bool_() and has_texts(kind)


def texts_of(column: pa.Array) -> Texts:
    """Return the cells of a column that ``has_texts``; ``pa.ArrowInvalid`` if it is not UTF-8."""
    if pa.types.is_null(column.type):
        return Texts((), np.full(len(column), -1, dtype=np.int64))
    column.validate(full=True)
    encoded = pc.dictionary_encode(column)
    values = encoded.dictionary.to_pylist()
    if pa.types.is_floating(column.type):  # 0.1 is written 0.1 in each precision
        values = [float(str(value)) for value in encoded.dictionary.to_numpy()]
    raw = [_text(value) for value in values]
    distinct = list(dict.fromkeys(text for text in raw if text))
    places = {text: place for place, text in enumerate(distinct)}
    targets = np.array([places.get(text, -1) for text in raw] + [-1], dtype=np.int64)
    codes = as_array(pc.fill_null(encoded.indices, len(raw))).astype(np.int64)
    return Texts(tuple(distinct), targets[codes])


def notations_of(column: pa.Array) -> set[Notation]:
    """Return how the whole numbers in a column of ids are written."""
    if is_text(column.type):
        texts = pc.utf8_trim_whitespace(column)
        found = {
            notation: pc.any(pc.match_substring_regex(texts, pattern)).as_py()
            for notation, pattern in NOTATIONS.items()
        }
        return {notation for notation, is_there in found.items() if is_there}
    if not has_numbers(column.type) or column.null_count == len(column):
        return set()
    return {Notation.DIGITS if pa.types.is_integer(column.type) else Notation.POINT}


def inexact_ids(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which cells of a column of floats or decimals are no whole number beyond doubt."""
    values = numbers_of(column).values
    whole = np.floor(values) == values
    if pa.types.is_floating(column.type):
        exact = {16: 2**11, 32: 2**24, 64: EXACT_BELOW}[column.type.bit_width]
        whole &= np.abs(values) < exact
    elif pa.types.is_decimal(column.type):
        whole = as_array(pc.fill_null(pc.equal(pc.floor(column), column), fill_value=True))
    return np.asarray(~np.isnan(values) & ~whole, dtype=np.bool_)


@dataclass(frozen=True)
class Numbers:
    """A column of n cells as numbers.

    Attributes:
        values: float64, shape (n,); NaN where there is none.
        missing: which cells are empty, NaN, or a word for it.
        faulty: which cells are text that is not a number.
    """

    values: npt.NDArray[np.float64]
    missing: npt.NDArray[np.bool_]
    faulty: npt.NDArray[np.bool_]


def has_numbers(kind: pa.DataType) -> bool:
    """Return whether ``numbers_of`` reads cells of this type."""
    return is_text(kind) or _is_number(kind) or kind == pa.null()


def numbers_of(column: pa.Array) -> Numbers:
    """Return the cells of a column that ``has_numbers``."""
    if is_text(column.type):
        return _parsed(column)
    values = np.full(len(column), np.nan)
    if _is_number(column.type):
        values = as_array(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan))
    return Numbers(values, np.isnan(values), np.zeros(len(column), dtype=np.bool_))


def numbers_alone(column: pa.Array) -> pa.Array | None:
    """Return texts as float64, if all that are there are finite numbers without any space."""
    try:
        found = column.cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    return found if pc.all(pc.is_finite(found), min_count=0).as_py() else None


def has_leading_zeros(column: pa.Array) -> bool:
    """Return whether one of some texts, all ``numbers_alone``, begins with a needless 0."""
    texts = column.cast(pa.string())
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    content = np.frombuffer(texts.buffers()[2] or b"\0", np.uint8)
    starts, stops = ends[:-1], ends[1:]
    last = len(content) - 1
    starts = starts + (content[np.minimum(starts, last)] == ord("-"))
    zero = (content[np.minimum(starts, last)] == ord("0")) & (starts + 1 < stops)
    after = content[np.minimum(starts[zero] + 1, last)]
    return bool(((after >= ord("0")) & (after <= ord("9"))).any())


def _parsed(column: pa.Array) -> Numbers:
    column.validate(full=True)
    trimmed = pc.utf8_trim_whitespace(column.cast(pa.string()))
    words = pa.array(["", *MISSING_WORDS])
    missing = as_array(pc.or_(trimmed.is_null(), pc.is_in(trimmed, value_set=words)))
    fits = pc.fill_null(pc.match_substring_regex(trimmed, _NUMBER), fill_value=False)
    parsed = pc.if_else(fits, trimmed, None).cast(pa.float64())
    return Numbers(as_array(pc.fill_null(parsed, np.nan)), missing, ~(as_array(fits) | missing))


def _text(value: Any) -> str:  # noqa: ANN401 - any cell
    if value is None:
        return ""
    if isinstance(value, str):
        return normal_id(value)
    if isinstance(value, float):
        if value != value:  # noqa: PLR0124 - NaN
            return ""
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, Decimal) and "." in (digits := f"{value:f}"):
        return digits.rstrip("0").rstrip(".")
    return str(value)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds texts."""
    return kind in (pa.string(), pa.large_string())


def _is_number(kind: pa.DataType) -> bool:
    types = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(fits(kind) for fits in types)


_WORDS: Final = (
    (is_text, "text"),
    (pa.types.is_integer, "a whole number"),
    (_is_number, "a number"),
    (pa.types.is_boolean, "true or false"),
    (pa.types.is_date, "a date"),
    (pa.types.is_time, "a time of day"),
    (pa.types.is_timestamp, "a date and time"),
    (pa.types.is_temporal, "a span of time"),
    (pa.types.is_null, "nothing"),
    (is_array, "a list"),
    (pa.types.is_struct, "a group of fields"),
    (
        lambda kind: (
            pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
            or pa.types.is_fixed_size_binary(kind)
        ),
        "bytes",
    ),
)
