"""Checks uploaded Parquet row by row in bounded parts before anything is stored."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.errors import InvalidRecordsError, PayloadTooLargeError, RowProblem
from app.domain.schema import TableSchema
from app.registry.datasets.columns import parquet
from app.registry.datasets.columns.parquet import EncryptedFileError
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.typed import typed_rows

MAX_ROWS = 1_000_000
MOST_FOOTER_BYTES = 64 << 20
_PART_BYTES = 8 << 20
_MAX_PART_ROWS = 1 << 16


@dataclass(frozen=True)
class Upload:
    """Validated records.

    Attributes:
        record_ids: n distinct, non-empty strings.
        subject_ids: n strings, null where there is none.
        content: what is kept of the n records.
    """

    record_ids: pa.Array
    subject_ids: pa.Array
    content: pa.Table

    def rows(self, rows: Sequence[int]) -> "Upload":
        """Return some of its rows."""
        places = pa.array(rows, pa.int64())
        return Upload(
            self.record_ids.take(places), self.subject_ids.take(places), self.content.take(places)
        )


def checked_parts(
    content: bytes | bytearray, schema: TableSchema, *, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Read and validate a Parquet file; yield it in parts until an error is found.

    It takes the columns that the schema names, of types that become theirs without loss. The
    limits are checked against the file's metadata before unpacking, and against the unpacked data,
    because metadata may lie.
    """
    file = opened(pa.BufferReader(content))
    plan = reading_plan(file, schema)
    problems = plan.problems
    _require_room(file.metadata.num_rows, plan.least_bytes, max_bytes)
    ids: list[pa.Array] = []
    rows = size = 0
    for part in read_parts(file, plan):
        problems.first = rows
        checked = plan.check(part)
        ids.append(checked.column(0))
        rows += part.num_rows
        size += checked.nbytes
        _require_room(rows, size, max_bytes)
        if problems.none:
            yield checked
    if rows == 0:
        problems.add(None, plan.id_column, "the file has no rows")
    else:
        _find_repeated(pa.concat_arrays(ids), plan.id_column, problems)
    problems.raise_any()


@dataclass(frozen=True)
class ReadingPlan:
    """How a file is read and checked.

    Attributes:
        columns: which of its columns are read.
        id_column: where it has the records' ids.
        row_bytes: about how much a row takes while it is checked.
        least_bytes: how much the file has when it is unpacked, by its own metadata.
        check: takes rows, and returns the columns of ``arrow_schema``, of which the first has the
            records' ids.
        problems: what it found; says which rows it takes.
    """

    columns: list[str]
    id_column: str
    row_bytes: int
    least_bytes: int
    check: Callable[[pa.RecordBatch], pa.RecordBatch]
    problems: Problems

    @property
    def rows_at_once(self) -> int:
        """How many rows a part has."""
        return min(_MAX_PART_ROWS, 1 + _PART_BYTES // self.row_bytes)


def reading_plan(file: pq.ParquetFile, schema: TableSchema) -> ReadingPlan:
    """Return how a file becomes records of a dataset."""
    problems, rows = Problems(), file.metadata.num_rows
    announced = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
    kinds = [kind for _, kind in schema.columns]
    wanted = {schema.record_id, schema.subject_id, *schema.names}
    return ReadingPlan(
        [name for name in file.schema_arrow.names if name in wanted],
        schema.record_id,
        1 + max(announced // max(1, rows), 8 * sum(kind.numbers for kind in kinds)),
        max(announced, rows * sum(kind.least_bytes for kind in kinds)),
        lambda part: typed_rows(part, schema, problems),
        problems,
    )


def joined(parts: Iterable[pa.RecordBatch], schema: TableSchema) -> Upload:
    """Concatenate validated parts; at least one."""
    table = pa.Table.from_batches(parts).combine_chunks()
    ids = [name for name in (schema.record_id, schema.subject_id) if name is not None]
    return Upload(
        table[schema.record_id].combine_chunks(),
        pa.nulls(len(table), pa.string())
        if schema.subject_id is None
        else table[schema.subject_id].combine_chunks(),
        table.drop_columns(ids),
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


def _find_repeated(ids: pa.Array, name: str, problems: Problems) -> None:
    """Add the rows whose ids came before."""
    codes = ids.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    _, firsts, places = np.unique(codes, return_index=True, return_inverse=True)
    repeated = (firsts[places] < np.arange(len(codes))) & (codes >= 0)
    for row in np.flatnonzero(repeated).tolist():
        problems.add(row, name, f"is the same as in row {firsts[places[row]]}")
