"""A whole table in the columns of its dataset, in parts that are small enough for an upload."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from app.domain.schema import TableSchema
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.sources import Source
from app.registry.datasets.columns.typed import typed_rows

_PART_BYTES: Final = 32 << 20
_PART_ROWS: Final = 100_000


@dataclass(frozen=True)
class Part:
    """Some rows of a table.

    Attributes:
        first: the number of the first row.
        records: the columns of an upload.
    """

    first: int
    records: pa.Table


def typed_parts(source: Source, schema: TableSchema) -> list[Part]:
    """Take a table's columns as their types, and check that its records have different ids."""
    row_bytes = max(1, source.table.nbytes // source.table.num_rows)
    rows = max(1, min(_PART_ROWS, _PART_BYTES // row_bytes))
    problems, parts = Problems(), []
    for first in range(0, source.table.num_rows, rows):
        problems.first = first
        batch = typed_rows(source.table.slice(first, rows), schema, problems)
        parts.append(Part(first, pa.Table.from_batches([batch])))
    problems.first = 0
    _refuse_duplicates(parts, schema.record_id, problems)
    with source.places():
        problems.raise_any()
    return parts


def _refuse_duplicates(parts: list[Part], name: str, problems: Problems) -> None:
    ids = pa.chunked_array([part.records.column(0).combine_chunks() for part in parts])
    whole = ids.combine_chunks()
    codes = whole.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    _, firsts = np.unique(codes, return_index=True)
    repeated = np.ones(len(codes), dtype=np.bool_)
    repeated[firsts] = False
    problems.add_where(repeated & (codes >= 0), name, "the id of an earlier row")
