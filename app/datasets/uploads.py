"""Checks uploaded Parquet row by row in bounded parts before anything is stored."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.domain.errors import InvalidRecordsError, PayloadTooLargeError, RowProblem
from app.domain.schema import FeatureSchema

MAX_REPORTED_PROBLEMS = 20
MAX_ID_LENGTH = 512
MAX_ROWS = 1_000_000
_COLUMNS = ("record_id", "subject_id", "label", "features")
_PART_BYTES = 8 << 20
_MAX_PART_ROWS = 1 << 16


@dataclass(frozen=True)
class Upload:
    """Validated records.

    Attributes:
        record_ids: n distinct, non-empty strings.
        subject_ids: n strings or None.
        labels: int64, shape (n,), each within the schema's classes.
        features: the schema's dtype, shape (n, schema.size).
    """

    record_ids: list[str]
    subject_ids: list[str | None]
    labels: npt.NDArray[np.int64]
    features: npt.NDArray[np.generic]


def part_schema(schema: FeatureSchema) -> pa.Schema:
    """Return the columns of a validated part."""
    value = pa.from_numpy_dtype(np.dtype(schema.dtype))
    return pa.schema(
        {
            "record_id": pa.string(),
            "subject_id": pa.string(),
            "label": pa.int64(),
            "features": pa.list_(value, schema.size),
        }
    )


def checked_parts(
    content: bytes | bytearray, schema: FeatureSchema, *, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Read and validate a Parquet file; yield it in parts until an error is found.

    ``record_id`` and ``subject_id`` are strings (integers are accepted and written in decimal),
    ``label`` an integer, ``features`` a list or tensor of ``schema.size`` numbers of any numeric
    type that the schema's dtype can represent. The limits are checked against the file's metadata
    before unpacking, and against the unpacked data, because metadata may lie.

    Raises:
        InvalidRecordsError: with the row and column of each of the first errors.
        PayloadTooLargeError: unpacked, it has more than ``max_bytes`` or ``MAX_ROWS``.
    """
    file = _opened(content)
    problems = _Problems()
    _check_columns(file.schema_arrow, problems)
    announced = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
    row_bytes = schema.size * np.dtype(schema.dtype).itemsize
    _require_room(file.metadata.num_rows, announced, max_bytes)
    _require_room(file.metadata.num_rows, file.metadata.num_rows * row_bytes, max_bytes)
    first_rows: dict[str, int] = {}
    rows = size = 0
    for part in _parts(file, min(_MAX_PART_ROWS, 1 + _PART_BYTES // (8 * schema.size))):
        checked = _checked(part, rows, schema, problems)
        _find_duplicates(checked["record_id"].to_pylist(), rows, first_rows, problems)
        rows += part.num_rows
        size += checked.nbytes
        _require_room(rows, size, max_bytes)
        if problems.none:
            yield checked
    problems.raise_any()
    if rows == 0:
        raise InvalidRecordsError([RowProblem(None, "record_id", "the file has no rows")], 1)


def joined(parts: Iterable[pa.RecordBatch]) -> Upload:
    """Concatenate validated parts; at least one."""
    record_ids: list[str] = []
    subject_ids: list[str | None] = []
    labels, features = [], []
    for part in parts:
        record_ids += part["record_id"].to_pylist()
        subject_ids += part["subject_id"].to_pylist()
        labels.append(part["label"].to_numpy())
        column = part["features"]
        features.append(column.flatten().to_numpy().reshape(-1, column.type.list_size))
    return Upload(record_ids, subject_ids, np.concatenate(labels), np.concatenate(features))


class _Problems:
    """The errors so far; only the first few are kept, all are counted."""

    def __init__(self) -> None:
        self._first: list[RowProblem] = []
        self._count = 0

    @property
    def none(self) -> bool:
        return self._count == 0

    def add(self, row: int | None, column: str, reason: str) -> None:
        self._count += 1
        if len(self._first) < MAX_REPORTED_PROBLEMS:
            self._first.append(RowProblem(row, column, reason))

    def add_where(
        self, faulty: npt.NDArray[np.bool_], first: int, column: str, reason: str
    ) -> None:
        """Add an error for each marked row; ``first`` is the row number of the first mark."""
        for row in np.flatnonzero(faulty)[:MAX_REPORTED_PROBLEMS]:
            self.add(first + int(row), column, reason)
        self._count += max(0, int(faulty.sum()) - MAX_REPORTED_PROBLEMS)

    def raise_any(self) -> None:
        if self._count:
            raise InvalidRecordsError(self._first, self._count)


def _unreadable(error: Exception) -> Exception:
    if isinstance(error, MemoryError):  # includes Arrow's own exception
        return error
    problem = RowProblem(None, "record_id", "the body is not a readable Parquet file")
    return InvalidRecordsError([problem], 1)


def _opened(content: bytes | bytearray) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        _ = file.schema_arrow.names  # raises if a name is not valid text
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(error) from error
    return file


def _parts(file: pq.ParquetFile, rows: int) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(batch_size=rows, use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(error) from error


def _require_room(rows: int, size: int, max_bytes: int) -> None:
    if rows > MAX_ROWS:
        raise PayloadTooLargeError(
            f"the file has {rows} rows or more; the limit is {MAX_ROWS}; send it in parts"
        )
    if size > max_bytes:
        raise PayloadTooLargeError(
            f"unpacked, the file has {size} bytes or more; the limit is {max_bytes}; send it in "
            "parts"
        )


def _check_columns(columns: pa.Schema, problems: _Problems) -> None:
    names = columns.names
    for column in ("record_id", "label", "features"):
        if names.count(column) != 1:
            problems.add(None, column, "the column must be present exactly once")
    for column in names:
        if column not in _COLUMNS:
            problems.add(None, column, f"unknown column; expected {', '.join(_COLUMNS)}")
    if names.count("subject_id") > 1:
        problems.add(None, "subject_id", "the column must be present at most once")
    problems.raise_any()
    for column in names:
        kind = columns.field(column).type
        if column == "label" and not pa.types.is_integer(kind):
            problems.add(None, column, "must be an integer column")
        elif column.endswith("_id") and not (
            pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        ):
            problems.add(None, column, "must be a string or an integer column")
        elif column == "features":
            _check_feature_type(kind, problems)
    problems.raise_any()


def _check_feature_type(kind: pa.DataType, problems: _Problems) -> None:
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation not in (None, list(range(len(kind.shape)))):
            problems.add(None, "features", "must be a tensor in C order, without permutation")
        kind = kind.storage_type
    value = kind.value_type if hasattr(kind, "value_field") else pa.null()
    if not (pa.types.is_integer(value) or pa.types.is_floating(value)):
        problems.add(None, "features", "must be a list or tensor of numbers")


def _checked(
    part: pa.RecordBatch, first: int, schema: FeatureSchema, problems: _Problems
) -> pa.RecordBatch:
    """Return a part in the columns of ``part_schema``; invalid values become arbitrary ones."""
    subject_ids = pa.nulls(part.num_rows, pa.string())
    if "subject_id" in part.schema.names:
        subject_ids = _ids(part["subject_id"], "subject_id", first, problems, required=False)
    columns = [
        _ids(part["record_id"], "record_id", first, problems, required=True),
        subject_ids,
        pa.array(_labels(part["label"], first, schema, problems)),
        _features(part["features"], first, schema, problems),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=part_schema(schema))


def _ids(
    column: pa.Array, name: str, first: int, problems: _Problems, *, required: bool
) -> pa.Array:
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        problems.add(None, name, "must be UTF-8 text")
        return pa.nulls(len(column), pa.string())
    if required:
        problems.add_where(_marks(column.is_null()), first, name, "is null")
    lengths = _numbers(pc.fill_null(pc.utf8_length(column), 1))
    wrong = (lengths < 1) | (lengths > MAX_ID_LENGTH)
    problems.add_where(wrong, first, name, f"must have 1 to {MAX_ID_LENGTH} characters")
    return column.cast(pa.string())


def _find_duplicates(
    record_ids: list[str | None], first: int, first_rows: dict[str, int], problems: _Problems
) -> None:
    for row, value in enumerate(record_ids, first):
        if value is not None and first_rows.setdefault(value, row) != row:
            problems.add(row, "record_id", f"is the same as in row {first_rows[value]}")


def _labels(
    column: pa.Array, first: int, schema: FeatureSchema, problems: _Problems
) -> npt.NDArray[np.int64]:
    null = _marks(column.is_null())
    problems.add_where(null, first, "label", "is null")
    labels: npt.NDArray[np.int64] = _numbers(pc.fill_null(column, 0)).astype(np.int64)
    outside = (labels < 0) | (labels >= schema.classes)
    reason = f"must lie between 0 and {schema.classes - 1}"
    problems.add_where(outside & ~null, first, "label", reason)
    return labels


def _features(column: pa.Array, first: int, schema: FeatureSchema, problems: _Problems) -> pa.Array:
    kind = pa.list_(pa.from_numpy_dtype(np.dtype(schema.dtype)), schema.size)
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    lengths = _numbers(pc.fill_null(pc.list_value_length(storage), -1))
    if isinstance(storage.type, pa.FixedSizeListType):
        lengths = np.where(_marks(storage.is_null()), -1, lengths)
    wrong = lengths != schema.size
    if wrong.any():
        problems.add_where(wrong, first, "features", f"must have {schema.size} elements")
        return pa.nulls(len(column), kind)
    flat = pc.list_flatten(storage)
    if flat.null_count:
        null = np.any(_marks(flat.is_null()).reshape(-1, schema.size), axis=1)
        problems.add_where(null, first, "features", "contains null")
        return pa.nulls(len(column), kind)
    converted = _converted(_numbers(flat).reshape(-1, schema.size), first, schema, problems)
    return pa.FixedSizeListArray.from_arrays(pa.array(converted.reshape(-1)), schema.size)


def _converted(
    raw: npt.NDArray[Any], first: int, schema: FeatureSchema, problems: _Problems
) -> npt.NDArray[np.generic]:
    if schema.dtype == "uint8":
        fits = (raw >= 0) & (raw <= 255) & (raw == np.floor(raw))
        reason = "must hold whole numbers from 0 to 255"
        problems.add_where(~fits.all(axis=1), first, "features", reason)
        return np.where(fits, raw, 0).astype(np.uint8)
    with np.errstate(over="ignore"):
        converted = raw.astype(schema.dtype)
    infinite = ~np.isfinite(converted).all(axis=1)
    problems.add_where(infinite, first, "features", f"must hold finite {schema.dtype} numbers")
    return converted


def _marks(column: pa.Array) -> npt.NDArray[np.bool_]:
    marks: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return marks


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers
