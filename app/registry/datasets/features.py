"""A frozen backbone's features of a shard: computed once, stored and erased like the shard.

The lock on a shard's row serialises two operations: an erasure rewrites the shard and its features,
and a worker adds features. A worker reads a shard, computes for a while, and adds its features only
if the shard is unchanged. Without that check it could bring back records erased meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.domain.ids import new_id
from app.registry.datasets.shards import without_rows
from app.registry.datasets.tables import FeatureShardRow, ShardRow
from app.registry.tables import BackboneRow
from app.storage.blobs import Blobs, adopt, doom
from app.storage.tables import BlobRow

_KIND = "features"


@dataclass(frozen=True)
class FeatureSource:
    """Where a shard's features are: made from which of its content, and by what.

    ``made_by`` are the columns of ``FeatureShardRow`` that say by which backbone and weights, and
    how records were read; ``features_blob_id`` is None if they are not computed yet.
    """

    shard_id: str
    shard_blob_id: str
    made_by: Mapping[str, str]
    features_blob_id: str | None


def source_of(session: Session, shard_id: str, **made_by: str) -> FeatureSource:
    """Return where one shard's features are now."""
    shard = session.get_one(ShardRow, shard_id)
    cached = _find(session, shard_id, made_by)
    blob_id = None if cached is None else cached.blob_id
    return FeatureSource(shard_id, shard.blob_id, made_by, blob_id)


def add(session: Session, blobs: Blobs, source: FeatureSource, content: bytes) -> bool:
    """Store features computed from ``source``; return False if others count.

    If the shard has changed since, nothing is stored: the content may hold erased records; nor if
    the backbone was archived. If another worker stored features first, those stay.
    """
    backbone_id = source.made_by["backbone_id"]  # which may end meanwhile
    backbone = session.get(BackboneRow, backbone_id, with_for_update={"read": True})
    if backbone is None or backbone.archived_at is not None or backbone.deleted_at is not None:
        return False
    shard = session.get_one(ShardRow, source.shard_id, with_for_update=True)
    if shard.blob_id != source.shard_blob_id or not shard.rows:  # without rows it was given up
        return False
    if _find(session, source.shard_id, source.made_by) is not None:
        return False
    blob = blobs.put(session, _KIND, content, dataset_id=shard.dataset_id)
    adopt(session, blob.id)
    session.add(
        FeatureShardRow(
            id=new_id("feat"), shard_id=source.shard_id, blob_id=blob.id, **source.made_by
        )
    )
    session.flush()
    return True


def erase(session: Session, blobs: Blobs, shard: ShardRow, seqs: Sequence[int]) -> None:
    """Rewrite all features of a shard without these records; the caller holds the shard's lock."""
    cached = session.scalars(select(FeatureShardRow).where(FeatureShardRow.shard_id == shard.id))
    for row in cached.all():
        left = without_rows(blobs.read(row.blob_id), seqs)
        rewritten = blobs.put(session, _KIND, left, dataset_id=shard.dataset_id)
        doom(session, row.blob_id)
        adopt(session, rewritten.id)
        row.blob_id = rewritten.id


def give_up(
    session: Session, *, backbone_id: str | None = None, shard_id: str | None = None
) -> None:
    """Give up all features that a backbone made, or all of a shard."""
    of_shard = FeatureShardRow.shard_id == shard_id
    mine = of_shard if backbone_id is None else FeatureShardRow.backbone_id == backbone_id
    for row in session.scalars(select(FeatureShardRow).where(mine)).all():
        doom(session, row.blob_id)
        session.delete(row)
    session.flush()


def stored_bytes(session: Session, dataset_id: str, backbone_id: str) -> int:
    """Return the size of all features that a backbone has made of a dataset."""
    query = select(func.sum(BlobRow.size_bytes)).join(
        FeatureShardRow, FeatureShardRow.blob_id == BlobRow.id
    )
    query = query.join(ShardRow, ShardRow.id == FeatureShardRow.shard_id)
    mine = FeatureShardRow.backbone_id == backbone_id, ShardRow.dataset_id == dataset_id
    return int(session.scalar(query.where(*mine)) or 0)


def _find(session: Session, shard_id: str, made_by: Mapping[str, str]) -> FeatureShardRow | None:
    return session.scalar(select(FeatureShardRow).filter_by(shard_id=shard_id, **made_by))
