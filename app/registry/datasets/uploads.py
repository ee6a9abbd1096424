"""Checks uploaded Parquet row by row in bounded parts before anything is stored."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.domain.encoding import TableEncoding
from app.domain.errors import InvalidRecordsError, PayloadTooLargeError, RowProblem
from app.domain.schema import FeatureSchema
from app.domain.table_schema import RecordSchema, TableSchema
from app.registry.datasets.columns import parquet
from app.registry.datasets.columns.arrays import array_fault, array_values, as_array
from app.registry.datasets.columns.cells import has_ids, plain
from app.registry.datasets.columns.encoding import ENCODED_BY, ids_of, records_of
from app.registry.datasets.columns.parquet import EncryptedFileError
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.typed import arrow_schema, typed_rows

MAX_ROWS = 1_000_000
MOST_FOOTER_BYTES = 64 << 20
_COLUMNS = ("record_id", "subject_id", "label", "features")
_PART_BYTES = 8 << 20
_MAX_PART_ROWS = 1 << 16


@dataclass(frozen=True)
class Upload:
    """Validated records.

    Attributes:
        record_ids: n distinct, non-empty strings.
        subject_ids: n strings or None.
        content: what is kept of the n records: ``label`` and ``features``, or the dataset's
            columns.
    """

    record_ids: list[str]
    subject_ids: list[str | None]
    content: pa.Table

    def rows(self, rows: Sequence[int]) -> "Upload":
        """Return some of its rows."""
        return Upload(
            [self.record_ids[row] for row in rows],
            [self.subject_ids[row] for row in rows],
            self.content.take(pa.array(rows, pa.int64())),
        )


def part_schema(schema: RecordSchema) -> pa.Schema:
    """Return the columns of a validated part."""
    if isinstance(schema, TableSchema):
        return arrow_schema(schema)
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
    content: bytes | bytearray,
    schema: RecordSchema,
    encoding: TableEncoding | None = None,
    *,
    max_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Read and validate a Parquet file; yield it in parts until an error is found.

    A dataset of columns takes those that its schema names, of types that become theirs without
    loss. All others take features:

    ``record_id`` and ``subject_id`` are text or whole numbers (``app.domain.owners_ids``),
    ``label`` an integer, ``features`` a list or tensor of ``schema.size`` numbers of any numeric
    type that the schema's dtype can represent. A dataset with an encoding takes plain tables with
    the encoding's columns, and files that say in their metadata that it encoded them. The limits
    are checked against the file's metadata before unpacking, and against the unpacked data, because
    metadata may lie.
    """
    file = opened(pa.BufferReader(content))
    plan = reading_plan(file, schema, encoding)
    problems = plan.problems
    _require_room(file.metadata.num_rows, plan.least_bytes, max_bytes)
    first_rows: dict[str, int] = {}
    rows = size = 0
    for part in read_parts(file, plan):
        problems.first = rows
        checked = plan.check(part)
        _find_duplicates(checked.column(0).to_pylist(), plan.id_column, first_rows, problems)
        rows += part.num_rows
        size += checked.nbytes
        _require_room(rows, size, max_bytes)
        if problems.none:
            yield checked
    problems.raise_any()
    if rows == 0:
        raise InvalidRecordsError([RowProblem(None, plan.id_column, "the file has no rows")], 1)


@dataclass(frozen=True)
class ReadingPlan:
    """How a file is read and checked.

    Attributes:
        columns: which of its columns are read; None for all.
        id_column: where it has the records' ids.
        row_bytes: about how much a row takes while it is checked.
        least_bytes: how much the file has when it is unpacked, by its own metadata.
        check: takes rows, and returns the columns of ``part_schema``, of which the first has the
            records' ids.
        problems: what it found; says which rows it takes.
    """

    columns: list[str] | None
    id_column: str
    row_bytes: int
    least_bytes: int
    check: Callable[[pa.RecordBatch], pa.RecordBatch]
    problems: Problems

    @property
    def rows_at_once(self) -> int:
        """How many rows a part has."""
        return min(_MAX_PART_ROWS, 1 + _PART_BYTES // self.row_bytes)


def reading_plan(
    file: pq.ParquetFile, schema: RecordSchema, encoding: TableEncoding | None
) -> ReadingPlan:
    """Return how a file becomes records of a dataset."""
    if isinstance(schema, TableSchema):
        return _typed_plan(file, schema)
    return _feature_plan(file, schema, encoding)


def _typed_plan(file: pq.ParquetFile, schema: TableSchema) -> ReadingPlan:
    announced, problems = _announced(file), Problems()
    wanted = {schema.record_id, schema.subject_id, *schema.names}
    return ReadingPlan(
        [name for name in file.schema_arrow.names if name in wanted],
        schema.record_id,
        1 + announced // max(1, file.metadata.num_rows),
        announced,
        lambda part: typed_rows(part, schema, problems),
        problems,
    )


def _feature_plan(
    file: pq.ParquetFile, schema: FeatureSchema, encoding: TableEncoding | None
) -> ReadingPlan:
    problems = Problems()
    encoded_by = (file.schema_arrow.metadata or {}).get(ENCODED_BY)
    is_plain = encoding is not None and encoded_by is None
    if not is_plain:
        _check_columns(file.schema_arrow, problems)
    if encoding is not None and encoded_by not in (None, encoding.digest.encode()):
        problems.add(None, "features", "the file was encoded by another encoding")
        problems.raise_any()
    row_bytes = schema.size * np.dtype(schema.dtype).itemsize

    def check(part: pa.RecordBatch) -> pa.RecordBatch:
        if encoding is not None and is_plain:
            return records_of(part, encoding, problems)
        return _checked(part, schema, problems)

    return ReadingPlan(
        None,
        encoding.record_id if encoding is not None and is_plain else "record_id",
        8 * schema.size,
        max(_announced(file), file.metadata.num_rows * row_bytes),
        check,
        problems,
    )


def _announced(file: pq.ParquetFile) -> int:
    """Return the unpacked size that the file's metadata tell."""
    return sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))


def joined(parts: Iterable[pa.RecordBatch], schema: RecordSchema) -> Upload:
    """Concatenate validated parts; at least one."""
    table = pa.Table.from_batches(parts)
    record_id, subject_id = "record_id", "subject_id"
    if isinstance(schema, TableSchema):
        record_id, subject_id = schema.record_id, schema.subject_id or ""
    has_subjects = subject_id in table.column_names
    ids = [record_id, subject_id] if has_subjects else [record_id]
    return Upload(
        table[record_id].to_pylist(),
        table[subject_id].to_pylist() if has_subjects else [None] * len(table),
        table.drop_columns(ids).combine_chunks(),
    )


def _unreadable(error: Exception) -> Exception:
    if isinstance(error, MemoryError):  # includes Arrow's own exception
        return error
    reason = "this is not a readable Parquet file"
    if isinstance(error, EncryptedFileError):
        reason = str(error)
    return InvalidRecordsError([RowProblem(None, "record_id", reason)], 1)


def opened(source: pa.NativeFile) -> pq.ParquetFile:
    """Open a Parquet file; ``InvalidRecordsError`` if it is none, or encrypted."""
    try:
        file = parquet.opened(source, most_footer_bytes=MOST_FOOTER_BYTES)
        _ = file.schema_arrow.names  # raises if a name is not valid text
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(error) from error
    return file


def read_parts(
    file: pq.ParquetFile, plan: ReadingPlan, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, or of some of its row groups, in parts."""
    try:
        yield from file.iter_batches(
            batch_size=plan.rows_at_once,
            row_groups=groups,
            columns=plan.columns,
            use_threads=False,
        )
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


def _check_columns(columns: pa.Schema, problems: Problems) -> None:
    names = columns.names
    for number, column in enumerate(names, start=1):
        if column not in _COLUMNS:  # where a row was taken for the header, its name is a value
            reason = f"unknown column; expected {', '.join(_COLUMNS)}"
            problems.add(None, f"number {number}", reason)
    for column in _COLUMNS:
        if names.count(column) != 1 and (column in names or column != "subject_id"):
            problems.add(None, column, "the column must be present exactly once")
    problems.raise_any()


def _check_types(columns: Mapping[str, pa.Array]) -> None:
    problems = Problems()
    for column, kind in ((name, cells.type) for name, cells in columns.items()):
        if column == "label" and not pa.types.is_integer(kind):
            problems.add(None, column, "must be an integer column")
        elif column.endswith("_id") and not has_ids(kind):
            problems.add(None, column, "must hold text or whole numbers")
        elif column == "features" and (fault := array_fault(kind)) is not None:
            problems.add(None, column, fault)
    problems.raise_any()


def _checked(part: pa.RecordBatch, schema: FeatureSchema, problems: Problems) -> pa.RecordBatch:
    """Return a part in the columns of ``part_schema``; invalid values become arbitrary ones."""
    columns = {name: plain(part[name]) for name in part.schema.names}
    _check_types(columns)
    subject_ids = pa.nulls(part.num_rows, pa.string())
    if "subject_id" in columns:
        subject_ids = ids_of(part, "subject_id", problems, required=False)
    checked = [
        ids_of(part, "record_id", problems, required=True),
        subject_ids,
        pa.array(_labels(columns["label"], schema, problems)),
        _features(columns["features"], schema, problems),
    ]
    return pa.RecordBatch.from_arrays(checked, schema=part_schema(schema))


def _find_duplicates(
    record_ids: list[str | None], name: str, first_rows: dict[str, int], problems: Problems
) -> None:
    for row, value in enumerate(record_ids, problems.first):
        if value is not None and first_rows.setdefault(value, row) != row:
            problems.add(row, name, f"is the same as in row {first_rows[value]}")


def _labels(column: pa.Array, schema: FeatureSchema, problems: Problems) -> npt.NDArray[np.int64]:
    null = as_array(column.is_null())
    problems.add_where(null, "label", "is null")
    labels: npt.NDArray[np.int64] = as_array(pc.fill_null(column, 0)).astype(np.int64)
    outside = (labels < 0) | (labels >= schema.classes)
    reason = f"must lie between 0 and {schema.classes - 1}"
    problems.add_where(outside & ~null, "label", reason)
    return labels


def _features(column: pa.Array, schema: FeatureSchema, problems: Problems) -> pa.Array:
    values = array_values(
        column,
        name="features",
        size=schema.size,
        dtype=schema.dtype,
        vocabulary=schema.vocabulary,
        problems=problems,
    )
    if values is None:
        return pa.nulls(len(column), part_schema(schema).field("features").type)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), schema.size)
