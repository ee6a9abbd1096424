"""Predictions as files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.description import ModelDescription
from app.domain.errors import InvalidInputError


def write_predictions(
    path: Path, rows: pa.Table, predictions: pa.Table, description: ModelDescription
) -> None:
    """Write predictions as Parquet, after the record ids, if the rows have them."""
    if path.suffix != ".parquet":
        raise InvalidInputError(f"{path.name}: expected a .parquet file")
    record_id = description.record_id
    if record_id in rows.schema.names and record_id not in predictions.schema.names:
        predictions = predictions.add_column(0, record_id, rows.column(record_id))
    try:
        pq.write_table(predictions, path)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {type(error).__name__}") from error
