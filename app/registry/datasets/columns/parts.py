"""A whole table in encoded parts, each small enough for one upload."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from app.domain.columns import ArrayColumn
from app.domain.encoding import LabelColumn, TableEncoding
from app.domain.table_schema import TableSchema
from app.registry.datasets.columns.encoding import ENCODED_BY, records_of
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.columns.sources import Source
from app.registry.datasets.columns.typed import typed_rows

_PART_BYTES: Final = 32 << 20
_PART_ROWS: Final = 100_000


@dataclass(frozen=True)
class Part:
    """Some rows of a table, encoded.

    Attributes:
        first: the number of the first row.
        records: the columns of an upload.
    """

    first: int
    records: pa.Table


def encoded_parts(source: Source, encoding: TableEncoding) -> list[Part]:
    """Encode a table, and check that its records have different ids."""
    encoded = {ENCODED_BY: encoding.digest}

    def read(piece: pa.Table, problems: Problems) -> pa.Table:
        batch = records_of(piece, encoding, problems)
        return pa.Table.from_batches([batch]).replace_schema_metadata(encoded)

    rows = max(1, min(_PART_ROWS, _PART_BYTES // (8 * encoding.width)))
    return _parts(source, rows, encoding.record_id, read)


def typed_parts(source: Source, schema: TableSchema) -> list[Part]:
    """Take a table's columns as their types, and check that its records have different ids."""

    def read(piece: pa.Table, problems: Problems) -> pa.Table:
        return pa.Table.from_batches([typed_rows(piece, schema, problems)])

    row_bytes = max(1, source.table.nbytes // source.table.num_rows)
    rows = max(1, min(_PART_ROWS, _PART_BYTES // row_bytes))
    return _parts(source, rows, schema.record_id, read)


def _parts(
    source: Source, rows: int, record_id: str, read: Callable[[pa.Table, Problems], pa.Table]
) -> list[Part]:
    """Read a table in parts of so many rows, whose first columns have the records' ids."""
    problems, parts = Problems(), []
    for first in range(0, source.table.num_rows, rows):
        problems.first = first
        parts.append(Part(first, read(source.table.slice(first, rows), problems)))
    problems.first = 0
    _refuse_duplicates(parts, record_id, problems)
    with source.places():
        problems.raise_any()
    return parts


def upload_form(
    shape: tuple[int, ...],
    dtype: str,
    classes: int,
    *,
    vocabulary: int | None = None,
    subjects: bool,
) -> TableEncoding:
    """Return what reads tables in the columns of an upload; a dataset need not say it."""
    return TableEncoding(
        columns=(ArrayColumn(name="features", shape=shape, dtype=dtype, vocabulary=vocabulary),),
        label=LabelColumn(name="label", classes=tuple(range(classes))),
        record_id="record_id",
        subject_id="subject_id" if subjects else None,
    )


def is_upload_form(encoding: TableEncoding) -> bool:
    """Return whether an encoding only says what holds without one."""
    return encoding == upload_form(
        encoding.shape,
        encoding.dtype,
        len(encoding.label.classes),
        vocabulary=encoding.vocabulary,
        subjects=encoding.subject_id is not None,
    )


def encoding_of(dataset: Mapping[str, Any], source: Source) -> TableEncoding:
    """Return how a dataset, as the API shows it, reads a table."""
    if dataset["encoding"] is not None:
        return TableEncoding.from_json(dataset["encoding"])
    features = dataset["features"]
    return upload_form(
        tuple(features["shape"]),
        features["dtype"],
        dataset["classes"],
        vocabulary=features["vocabulary"],
        subjects="subject_id" in source.table.column_names,
    )


def _refuse_duplicates(parts: list[Part], name: str, problems: Problems) -> None:
    ids = pa.chunked_array([part.records.column(0).combine_chunks() for part in parts])
    whole = ids.combine_chunks()
    codes = whole.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    _, firsts = np.unique(codes, return_index=True)
    repeated = np.ones(len(codes), dtype=np.bool_)
    repeated[firsts] = False
    problems.add_where(repeated & (codes >= 0), name, "the id of an earlier row")
