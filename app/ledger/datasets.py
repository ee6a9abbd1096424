"""Datasets' definitions, with their log entries."""

from sqlalchemy.orm import Session

from app.datasets import repository, service
from app.datasets.tables import DatasetRow
from app.domain.schema import FeatureSchema
from app.ledger import digests, log


def define_dataset(session: Session, *, name: str, schema: FeatureSchema) -> DatasetRow:
    """Create an empty dataset; the same definition again returns the one that exists.

    Raises:
        ConflictError: the name is taken by a dataset with another schema.
    """
    is_new = repository.find_dataset(session, name) is None
    row = service.define_dataset(session, name=name, schema=schema)
    if is_new:
        definition = digests.of_dataset(row)
        log.append(session, "dataset.defined", dataset=row.id, definition=definition)
    return row
