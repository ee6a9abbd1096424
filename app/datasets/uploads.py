"""Uploaded Parquet, checked row by row before anything is stored."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.domain.errors import InvalidRecordsError, RowProblem
from app.domain.schema import FeatureSchema

MAX_REPORTED_PROBLEMS = 20
MAX_ID_LENGTH = 512
_COLUMNS = ("record_id", "subject_id", "label", "features")


@dataclass(frozen=True)
class Upload:
    """Records that passed every check.

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


def parse_upload(content: bytes, schema: FeatureSchema) -> Upload:
    """Read and check a Parquet file.

    ``record_id`` and ``subject_id`` are strings (integers are accepted and spelt in decimal),
    ``label`` an integer, ``features`` a list or tensor of ``schema.size`` numbers of any numeric
    type that the schema's dtype can hold.

    Raises:
        InvalidRecordsError: with the row and column of each of the first faults.
    """
    table = _read(content)
    if table.num_rows == 0:
        raise InvalidRecordsError([RowProblem(None, "record_id", "the file has no rows")], 1)
    problems = _Problems()
    record_ids = _ids(table["record_id"], "record_id", problems, required=True)
    subject_ids: list[str | None] = [None] * table.num_rows
    if "subject_id" in table.column_names:
        subject_ids = _ids(table["subject_id"], "subject_id", problems, required=False)
    _refuse_duplicates(record_ids, problems)
    labels = _labels(table["label"], schema, problems)
    features = _features(table["features"], schema, problems)
    problems.raise_any()
    return Upload([i for i in record_ids if i is not None], subject_ids, labels, features)


class _Problems:
    """Faults found so far; only the first few are kept, all are counted."""

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

    def add_where(self, faulty: npt.NDArray[np.bool_], column: str, reason: str) -> None:
        for row in np.flatnonzero(faulty)[:MAX_REPORTED_PROBLEMS]:
            self.add(int(row), column, reason)
        self._count += max(0, int(faulty.sum()) - MAX_REPORTED_PROBLEMS)

    def raise_any(self) -> None:
        if self._count:
            raise InvalidRecordsError(self._first, self._count)


def _read(content: bytes) -> pa.Table:
    try:
        table = pq.read_table(pa.BufferReader(content))
        columns = table.column_names  # of which each may be no text at all
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = RowProblem(None, "record_id", "the body is not a readable Parquet file")
        raise InvalidRecordsError([problem], 1) from error
    problems = _Problems()
    for column in ("record_id", "label", "features"):
        if columns.count(column) != 1:
            problems.add(None, column, "the column must be present exactly once")
    for column in columns:
        if column not in _COLUMNS:
            problems.add(None, column, f"unknown column; expected {', '.join(_COLUMNS)}")
    kind = table.schema.field("features").type if problems.none else None
    if isinstance(kind, pa.FixedShapeTensorType) and kind.permutation not in (
        None,
        list(range(len(kind.shape))),
    ):
        problems.add(None, "features", "must be a tensor in C order, without permutation")
    problems.raise_any()
    return table


def _ids(
    column: pa.ChunkedArray, name: str, problems: _Problems, *, required: bool
) -> list[str | None]:
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        problems.add(None, name, "must be a string or an integer column")
        return []
    try:
        ids: list[str | None] = column.to_pylist()
    except UnicodeDecodeError:
        problems.add(None, name, "must be UTF-8 text")
        return []
    for row, value in enumerate(ids):
        if value is None:
            if required:
                problems.add(row, name, "is null")
        elif not 1 <= len(value) <= MAX_ID_LENGTH:
            problems.add(row, name, f"must have 1 to {MAX_ID_LENGTH} characters")
    return ids


def _refuse_duplicates(record_ids: list[str | None], problems: _Problems) -> None:
    first_row: dict[str, int] = {}
    for row, value in enumerate(record_ids):
        if value is not None and first_row.setdefault(value, row) != row:
            problems.add(row, "record_id", f"is the same as in row {first_row[value]}")


def _labels(
    column: pa.ChunkedArray, schema: FeatureSchema, problems: _Problems
) -> npt.NDArray[np.int64]:
    if not pa.types.is_integer(column.type):
        problems.add(None, "label", "must be an integer column")
        return np.empty(0, dtype=np.int64)
    null = column.is_null().to_numpy()
    problems.add_where(null, "label", "is null")
    labels: npt.NDArray[np.int64] = pc.fill_null(column, 0).to_numpy().astype(np.int64)
    outside = (labels < 0) | (labels >= schema.classes)
    problems.add_where(outside & ~null, "label", f"must lie between 0 and {schema.classes - 1}")
    return labels


def _features(
    column: pa.ChunkedArray, schema: FeatureSchema, problems: _Problems
) -> npt.NDArray[np.generic]:
    empty = np.empty((0, schema.size), dtype=schema.dtype)
    storage = pa.chunked_array([_storage(chunk) for chunk in column.chunks])
    value_type = getattr(storage.type, "value_type", None)
    if value_type is None or not (
        pa.types.is_integer(value_type) or pa.types.is_floating(value_type)
    ):
        problems.add(None, "features", "must be a list or tensor of numbers")
        return empty
    lengths = pc.fill_null(pc.list_value_length(storage), -1).to_numpy()
    if isinstance(storage.type, pa.FixedSizeListType):
        lengths = np.where(storage.is_null().to_numpy(), -1, lengths)
    wrong = lengths != schema.size
    if wrong.any():
        problems.add_where(wrong, "features", f"must have {schema.size} elements")
        return empty
    flat = pc.list_flatten(storage)
    if flat.null_count:
        rows = flat.is_null().to_numpy().reshape(-1, schema.size).any(axis=1)
        problems.add_where(rows, "features", "contains null")
        return empty
    return _converted(flat.to_numpy().reshape(-1, schema.size), schema, problems)


def _storage(chunk: pa.Array) -> pa.Array:
    """Return a tensor column's underlying list array."""
    return chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk


def _converted(
    raw: npt.NDArray[Any], schema: FeatureSchema, problems: _Problems
) -> npt.NDArray[np.generic]:
    if schema.dtype == "uint8":
        fits = (raw >= 0) & (raw <= 255) & (raw == np.floor(raw))
        problems.add_where(~fits.all(axis=1), "features", "must hold whole numbers from 0 to 255")
        return np.where(fits, raw, 0).astype(np.uint8)
    with np.errstate(over="ignore"):
        converted = raw.astype(schema.dtype)
    problems.add_where(
        ~np.isfinite(converted).all(axis=1), "features", f"must hold finite {schema.dtype} numbers"
    )
    return converted
