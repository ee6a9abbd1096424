"""All SQL about backbones."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from app import log
from app.backbones.tables import BackboneRow
from app.domain.errors import NotFoundError


def backbone_named(session: Session, name: str, *, lock: bool = False) -> BackboneRow:
    """Return a backbone, or raise ``NotFoundError``."""
    query = select(BackboneRow).where(BackboneRow.name == name)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise NotFoundError("backbone", name)
    return row


def find_backbone(session: Session, name: str) -> BackboneRow | None:
    """Return a backbone or None."""
    return session.scalar(select(BackboneRow).where(BackboneRow.name == name))


def backbones(session: Session, *, after: str | None = None, limit: int) -> Sequence[BackboneRow]:
    """Return a page of backbones by name, starting after the name ``after``."""
    query = select(BackboneRow)
    if after is not None:
        query = query.where(BackboneRow.name > after)
    return session.scalars(query.order_by(BackboneRow.name).limit(limit)).all()


def digest_of(row: BackboneRow | Row[Any]) -> str:
    """Digest the part of a backbone that never changes."""
    return log.digest_of([row.name, row.source, row.architecture, row.input_shape, row.classes])
