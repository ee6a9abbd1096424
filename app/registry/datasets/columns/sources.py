"""A table with the files that its rows are from, so that errors can name them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from app.domain.errors import InvalidInputError, InvalidRecordsError, RowProblem, TableError

INDEX: str = "(index)"
"""The name of a pandas index that has no name in its file."""


def as_table(rows: Any) -> pa.Table:  # noqa: ANN401 - pandas is not among our libraries
    """Return a table of pandas, polars or Arrow, or columns by name; ``InvalidInputError`` else."""
    try:
        return pa.table(rows)
    except pa.ArrowException as error:
        # Its message quotes a value.
        raise InvalidInputError(
            f"a column of the {type(rows).__name__} has values of several types, or it is no table"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"a table is a pandas.DataFrame or a pyarrow.Table, not {type(rows).__name__}"
        ) from error


@dataclass(frozen=True)
class Source:
    """A table, read from one file or from several.

    Attributes:
        name: the path as the user wrote it, for errors about the whole.
        table: all rows.
        files: each file's name with the number of its first row, in order.
        index: the column that pandas wrote as the index, if any.
        kind: the format, such as ``CSV``.
    """

    name: str
    table: pa.Table
    files: Sequence[tuple[str, int]]
    index: str | None
    kind: str

    def place(self, row: int) -> str:
        """Return a row's file and number; rows count from 1, without the header."""
        name, first = next(part for part in reversed(self.files) if part[1] <= row)
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
