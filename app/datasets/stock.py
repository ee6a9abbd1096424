"""How much a dataset's shards hold."""

from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.datasets.tables import ShardRow
from app.storage.tables import BlobRow


class Stock(NamedTuple):
    """What a dataset's shards are, without reading one: how many rows, and the largest of them."""

    rows: int
    most_rows: int
    most_bytes: int


def stock_of(session: Session, dataset_id: str) -> Stock:
    """Return the sizes of a dataset's shards; their bytes are as they are stored."""
    query = (
        select(func.sum(ShardRow.rows), func.max(ShardRow.rows), func.max(BlobRow.size_bytes))
        .join(BlobRow, BlobRow.id == ShardRow.blob_id)
        .where(ShardRow.dataset_id == dataset_id)
    )
    return Stock(*(int(found or 0) for found in session.execute(query).one()))
