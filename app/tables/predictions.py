"""Rows to predict, and predictions, as files."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from app.domain import ridge_head
from app.domain.description import ModelDescription
from app.domain.errors import InvalidInputError, InvalidRecordsError
from app.tables import encoding
from app.tables.delimited import Dialect
from app.tables.reading import read_source


def read_rows(
    path: Path,
    description: ModelDescription,
    *,
    written: tuple[str | None, str | None, str],
) -> tuple[pa.Table, npt.NDArray[Any]]:
    """Read a table as ``expunge dataset push`` does; return it with its raw features [n, *shape].

    Args:
        path: any file that could be pushed, or a folder of them.
        description: of the model, which says what the columns become.
        written: a text table's delimiter, encoding and decimal sign, as options say them.

    Raises:
        TableError: with each fault's file, row and column.
    """
    source = read_source(path, Dialect.of_options(*written))
    try:
        features = encoding.features_of(source.table, description.columns)
    except InvalidRecordsError as error:
        raise source.refusal(error) from error
    return source.table, features.reshape(len(features), *description.schema.shape)


def write_scores(
    path: Path, rows: pa.Table, logits: npt.NDArray[Any], description: ModelDescription
) -> None:
    """Write record ids, if the rows have them, predictions and probabilities as Parquet.

    A ridge head has scores in place of probabilities.

    Raises:
        InvalidInputError: the path is not that of a Parquet file, or cannot be written.
    """
    if path.suffix != ".parquet":
        raise InvalidInputError(f"{path.name}: expected a .parquet file")
    exact = logits.astype(np.float64)
    name, values = "scores", exact
    if description.architecture.name != ridge_head.NAME:
        weights = np.exp(exact - exact.max(axis=1, keepdims=True, initial=-np.inf))
        name, values = "probabilities", weights / weights.sum(axis=1, keepdims=True)
    names = pa.array(description.class_names)
    columns: dict[str, Any] = {}
    record_id = description.columns.record_id
    if record_id in rows.schema.names:
        columns[record_id] = rows.column(record_id)
    columns["prediction"] = names.take(pa.array(exact.argmax(axis=1)))
    columns[name] = pa.FixedSizeListArray.from_arrays(
        pa.array(values.reshape(-1)), len(description.class_names)
    )
    try:
        pq.write_table(pa.table(columns), path)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {type(error).__name__}") from error
