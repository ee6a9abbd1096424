"""What is wrong with a table: each fault once, with its first row."""

import numpy as np
import numpy.typing as npt

from app.domain.errors import InvalidRecordsError, RowProblem

MAX_REPORTED_PROBLEMS = 20


class Problems:
    """The faults so far. Those of one column and reason are one, with a count of its rows.

    Attributes:
        first: the number of the first row of the part that is looked at.
    """

    def __init__(self) -> None:
        self.first = 0
        self._found: dict[tuple[str, str], RowProblem] = {}
        self._count = 0

    @property
    def none(self) -> bool:
        """Whether nothing was found."""
        return self._count == 0

    def add(self, row: int | None, column: str, reason: str, *, rows: int = 1) -> None:
        """Add a fault; None for ``row`` means the whole column."""
        self._count += rows
        known = self._found.get((column, reason))
        if known is not None:
            row, rows = known.row, known.rows + rows
        elif len(self._found) >= MAX_REPORTED_PROBLEMS:
            return
        self._found[column, reason] = RowProblem(row, column, reason, rows)

    def add_where(self, faulty: npt.NDArray[np.bool_], column: str, reason: str) -> None:
        """Add a fault of all marked rows of the part."""
        marked = int(np.count_nonzero(faulty))
        if marked:
            self.add(self.first + int(np.argmax(faulty)), column, reason, rows=marked)

    def raise_any(self) -> None:
        """Raise ``InvalidRecordsError`` if there are faults."""
        if self._count:
            raise InvalidRecordsError(list(self._found.values()), self._count)
