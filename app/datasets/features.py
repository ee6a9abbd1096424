"""Features that a frozen backbone made of a shard: computed once, kept and erased like the shard.

The lock on a shard's row orders two things: an erasure rewrites the shard and its features under
it, and features are added under it. A worker reads a shard, computes for a while, and adds what it
computed only if the shard is still the one that it read. Without that check it could bring back
records that were erased while it computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.datasets.shards import without_rows
from app.datasets.tables import FeatureShardRow, ShardRow
from app.domain.ids import new_id
from app.storage.blobs import Blobs

_KIND = "features"


@dataclass(frozen=True)
class FeatureSource:
    """Where a shard's features can be found.

    Attributes:
        shard_id: the shard.
        shard_blob_id: its records, as they were when this was looked up.
        features_blob_id: what the backbone made of them; None if not computed yet.
    """

    shard_id: str
    shard_blob_id: str
    features_blob_id: str | None


def source_of(session: Session, shard_id: str, backbone_id: str) -> FeatureSource:
    """Return where one shard's features can be found now."""
    shard = session.get_one(ShardRow, shard_id)
    cached = _find(session, shard_id, backbone_id)
    return FeatureSource(
        shard_id=shard_id,
        shard_blob_id=shard.blob_id,
        features_blob_id=None if cached is None else cached.blob_id,
    )


def add(
    session: Session, blobs: Blobs, source: FeatureSource, backbone_id: str, content: bytes
) -> bool:
    """Keep features that were computed from ``source``; False if the shard has changed since.

    Nothing is written in that case: the content may hold records that were erased meanwhile. If
    another worker was faster, its features stay.
    """
    shard = session.get_one(ShardRow, source.shard_id, with_for_update=True)
    if shard.blob_id != source.shard_blob_id:
        return False
    if _find(session, source.shard_id, backbone_id) is not None:
        return True
    blob = blobs.put(session, _KIND, content, dataset_id=shard.dataset_id)
    blobs.adopt(session, blob.id)
    session.add(
        FeatureShardRow(
            id=new_id("feat"),
            shard_id=source.shard_id,
            backbone_id=backbone_id,
            blob_id=blob.id,
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
        blobs.doom(session, row.blob_id)
        blobs.adopt(session, rewritten.id)
        row.blob_id = rewritten.id


def _find(session: Session, shard_id: str, backbone_id: str) -> FeatureShardRow | None:
    return session.scalar(
        select(FeatureShardRow).where(
            FeatureShardRow.shard_id == shard_id, FeatureShardRow.backbone_id == backbone_id
        )
    )
