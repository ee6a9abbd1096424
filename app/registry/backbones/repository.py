"""All SQL about backbones."""

from collections.abc import Sequence

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError
from app.evidence import log
from app.registry.backbones.tables import BackboneRow
from app.runtime.database.queries import known
from app.storage.blobs import StoredBlob, adopt


def backbone_named(session: Session, name: str, *, lock: bool = False) -> BackboneRow:
    """Return a backbone, or raise ``NotFoundError``; ``lock`` locks it and reads it again."""
    query = _named(name)
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    return known(session.scalar(query), "backbone", name)


def add(session: Session, row: BackboneRow) -> BackboneRow:
    """Define a backbone without weights; ``ConflictError`` if its name is taken."""
    if session.scalar(_named(row.name)) is not None:
        raise ConflictError(f"backbone {row.name!r} exists already")
    session.add(row)
    session.flush()
    log.append(session, "backbone.defined", backbone=row.id)
    return row


def give_weights(session: Session, row: BackboneRow, blob: StoredBlob) -> None:
    """Let a backbone have these weights."""
    adopt(session, blob.id)
    row.blob_id, row.sha256, row.size_bytes = blob.id, blob.sha256, blob.size_bytes
    log.append(session, "backbone.uploaded", backbone=row.id, sha256=blob.sha256)


def backbones(session: Session, *, after: str | None = None, limit: int) -> Sequence[BackboneRow]:
    """Return a page of backbones by name, starting after the name ``after``."""
    query = select(BackboneRow).where(BackboneRow.deleted_at.is_(None))
    if after is not None:
        query = query.where(BackboneRow.name > after)
    return session.scalars(query.order_by(BackboneRow.name).limit(limit)).all()


def _named(name: str) -> Select[BackboneRow]:
    return select(BackboneRow).where(BackboneRow.name == name, BackboneRow.deleted_at.is_(None))
