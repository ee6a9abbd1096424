"""A table in the columns of its dataset, in parts that are small enough for an upload.

A table is read twice: all of it is checked before the first part is sent.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from app.access.pseudonyms import Pseudonyms
from app.domain.schema import TableSchema
from app.registry.datasets.columns.cells import notations_of, plain
from app.registry.datasets.columns.encoding import ids_of
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.sources import Source
from app.registry.datasets.columns.typed import typed_rows

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
