"""A table with the files that its rows are from, in parts that are small enough for an upload.

Errors name the files. A table is read twice: all of it is checked before the first part is sent.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow.interchange import from_dataframe

from app.access.pseudonyms import Pseudonyms
from app.domain.errors import InvalidInputError, InvalidRecordsError, RowProblem, TableError
from app.domain.ids import Notation
from app.domain.schema import TableSchema
from app.registry.datasets.columns.cells import notations_of, plain, plain_type
from app.registry.datasets.columns.encoding import ids_of
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.typed import typed_rows

INDEX: str = "(index)"
"""The name of a pandas index that has no name in its file."""

_PART_BYTES: Final = 8 << 20
_PART_ROWS: Final = 100_000


def as_table(rows: Any) -> pa.Table:  # noqa: ANN401 - pandas is not among our libraries
    """Return a table of pandas, polars or Arrow, or columns by name; ``InvalidInputError`` else."""
    try:
        if hasattr(rows, "__dataframe__") and not hasattr(rows, "__arrow_c_stream__"):
            return from_dataframe(rows)
        return pa.table(rows)
    except pa.ArrowException as error:
        # Its message quotes a value.
        raise InvalidInputError(
            f"a column of the {type(rows).__name__} has values of several types, or it is no table"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"a table is a DataFrame of pandas or polars, or of Arrow, not {type(rows).__name__}"
        ) from error


@dataclass(frozen=True)
class TableFile:
    """One file of a table.

    Attributes:
        name: for errors.
        schema: its columns.
        read: yields its rows, each time from the first on.
        index: the column that pandas wrote as the index, if any.
        kind: the format, such as ``CSV``.
    """

    name: str
    schema: pa.Schema
    read: Callable[[], Iterable[pa.Table]]
    index: str | None = None
    kind: str = "table"


@dataclass
class Source:
    """A table in one file or in several, which is read part by part, and more than once.

    Attributes:
        name: the path as the user wrote it, for errors about the whole.
        files: in order.
        rows: how many were read so far; after a pass, all.
        notations: how whole numbers in columns of ids are written, as a check has found them.
        firsts: each file's name with the number of its first row, as far as they were read.
    """

    name: str
    files: Sequence[TableFile]
    rows: int = 0
    notations: dict[str, set[Notation]] = field(default_factory=dict)
    firsts: list[tuple[str, int]] = field(default_factory=list)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The columns' types, in a layout that all files share; decimals may be whole numbers."""
        names = self.files[0].schema.names
        schemas = [
            pa.schema([(name, plain_type(file.schema.field(name).type)) for name in names])
            for file in self.files
        ]
        found = pa.unify_schemas(schemas, promote_options="permissive")
        return dict(zip(found.names, found.types, strict=True))

    def parts(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield all rows in parts of bounded size, each with the number of its first row."""
        self.rows, self.firsts = 0, []
        first = 0
        for part in _regrouped(self._pieces()):
            before, first = first, first + part.num_rows
            yield before, part
            del part  # before the next one is read

    def _pieces(self) -> Iterator[pa.Table]:
        names = self.files[0].schema.names
        for file in self.files:
            first = self.rows
            self.firsts.append((file.name, first))
            for piece in file.read():
                self.rows += piece.num_rows
                yield piece.select(names)
            if self.rows == first:
                raise TableError([f"{file.name}: the table has no rows"])

    def whole(self) -> pa.Table:
        """Return all rows."""
        tables = [
            pa.table({name: plain(part[name]) for name in part.column_names})
            for _, part in self.parts()
        ]
        return pa.concat_tables(tables, promote_options="permissive")

    def place(self, row: int) -> str:
        """Return a row's file and number; rows count from 1, without the header."""
        name, first = next(part for part in reversed(self.firsts) if part[1] <= row)
        return f"{name}: row {row - first + 1}"

    @contextmanager
    def places(self) -> Iterator[None]:
        """Turn ``InvalidRecordsError`` into ``TableError`` with the places of all faults."""
        try:
            yield
        except InvalidRecordsError as error:
            lines = [self._line(problem) for problem in error.problems]
            told = sum(problem.rows for problem in error.problems)
            if told < error.count:
                lines.append(f"{self.name}: and {error.count - told} more")
            raise TableError(lines) from error

    def _line(self, problem: RowProblem) -> str:
        where = self.name if problem.row is None else self.place(problem.row)
        more = f" (and in {problem.rows - 1} more)" if problem.rows > 1 else ""
        separator = ": " if problem.row is None else ", "
        return f"{where}{separator}column {problem.column!r}: {problem.reason}{more}"


def _regrouped(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables that are small enough for an upload, and not much smaller."""
    held: list[pa.Table] = []
    rows = size = 0
    for piece in pieces:
        row_bytes = max(1, piece.nbytes // max(1, piece.num_rows))
        most = max(1, min(_PART_ROWS, _PART_BYTES // row_bytes))
        for begin in range(0, piece.num_rows, most):
            few = piece.slice(begin, most)
            if held and (
                rows + few.num_rows > _PART_ROWS
                or size + few.num_rows * row_bytes > _PART_BYTES
                or not few.schema.equals(held[0].schema)
            ):
                whole, held, rows, size = pa.concat_tables(held), [], 0, 0
                yield whole
                del whole
            held.append(few)
            rows += few.num_rows
            size += few.num_rows * row_bytes
    if held:
        yield pa.concat_tables(held)


_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Part:
    """Some rows of a table.

    Attributes:
        first: the number of the first row.
        records: the columns of an upload.
    """

    first: int
    records: pa.Table


def typed_parts(source: Source, schema: TableSchema) -> Iterator[Part]:
    """Yield a table's rows in the types of its columns; ``check_rows`` looks at all before."""
    problems = Problems()

    def typed(numbered: tuple[int, pa.Table]) -> Part:
        problems.first, part = numbered
        batch = typed_rows(part, schema, problems)
        with source.places():
            problems.raise_any()
        return Part(problems.first, pa.Table.from_batches([batch]))

    return map(typed, source.parts())  # which holds no part while the next one is read


def check_rows(source: Source, schema: TableSchema) -> None:
    """Check that a table's columns have their types, and its records different ids.

    Raises:
        TableError: it names file, row and column.
    """
    problems = Problems()
    ids = IdsCheck(source, schema.record_id, schema.subject_id)
    for first, part in source.parts():
        problems.first = first
        ids.add(part, typed_rows(part, schema, problems).column(0))
    ids.find_repeated(problems)
    with source.places():
        problems.raise_any()


class IdsCheck:
    """What is to be known of a table's ids: how they are written, and which occur again.

    It holds keyed digests of them, so that it takes little memory.
    """

    def __init__(self, source: Source, record_id: str, subject_id: str | None) -> None:
        self._names = (record_id, *(() if subject_id is None else (subject_id,)))
        self._notations = {name: source.notations.setdefault(name, set()) for name in self._names}
        self._hash = Pseudonyms(os.urandom(32))
        self._digests: list[npt.NDArray[np.uint8]] = []

    def add(self, part: pa.Table, record_ids: pa.Array) -> None:
        """Look at the next rows, whose records have these ids; None counts as none."""
        for name in self._names:
            if name in part.column_names:
                self._notations[name] |= notations_of(plain(part[name]))
        digests = self._hash.records("", record_ids)[:, :_DIGEST_BYTES].copy()
        if record_ids.null_count:
            digests[record_ids.is_null().to_numpy(zero_copy_only=False)] = np.frombuffer(
                os.urandom(_DIGEST_BYTES * record_ids.null_count), np.uint8
            ).reshape(-1, _DIGEST_BYTES)
        self._digests.append(digests)

    def check(self, part: pa.Table, problems: Problems) -> None:
        """Look at the next rows; faulty ids go to ``problems``."""
        record_id, *subject_id = self._names
        self.add(part, ids_of(part, record_id, problems, required=True))
        for name in subject_id:
            ids_of(part, name, problems, required=False)

    def find_repeated(self, problems: Problems) -> None:
        """Add the rows whose ids came before."""
        digests = np.concatenate(self._digests).view(np.uint64)
        order = np.lexsort((digests[:, 1], digests[:, 0]))
        ordered = digests[order]
        repeated = np.zeros(len(digests), dtype=np.bool_)
        repeated[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
        problems.first = 0
        problems.add_where(repeated, self._names[0], "the id of an earlier row")
