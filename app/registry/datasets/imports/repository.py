"""All SQL about imports. Times are from the database's clock."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, func, or_, select
from sqlalchemy.orm import Session

from app.domain.states import ACTIVE_IMPORT_STATES, ImportState
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import ImportRow
from app.runtime.database.leases import prolong
from app.runtime.database.queries import known, newest_first


def import_of(session: Session, dataset: str, import_id: str, *, lock: bool = False) -> ImportRow:
    """Return an import of a dataset; ``NotFoundError`` if it has none of this id."""
    dataset_id = datasets.dataset_named(session, dataset).id
    query = select(ImportRow).where(ImportRow.id == import_id, ImportRow.dataset_id == dataset_id)
    return known(session.scalar(query.with_for_update() if lock else query), "import", import_id)


def locked(session: Session, import_id: str) -> ImportRow:
    """Lock an import and return it."""
    return session.get_one(ImportRow, import_id, with_for_update=True, populate_existing=True)


def page(
    session: Session, dataset: str, *, after: tuple[datetime, str] | None, limit: int
) -> Sequence[ImportRow]:
    """Return a dataset's imports, newest first."""
    dataset_id = datasets.dataset_named(session, dataset).id
    query = select(ImportRow).where(ImportRow.dataset_id == dataset_id)
    newest = newest_first(query, ImportRow.created_at, ImportRow.id, after=after, limit=limit)
    return session.scalars(newest).all()


def queued(session: Session) -> Sequence[ImportRow]:
    """Return the imports that wait for a worker, oldest first."""
    query = select(ImportRow).where(
        ImportRow.state == ImportState.QUEUED,
        or_(
            ImportRow.lease_expires_at.is_(None),
            ImportRow.lease_expires_at <= func.clock_timestamp(),
        ),
    )
    return session.scalars(query.order_by(ImportRow.created_at, ImportRow.id)).all()


def queued_one(session: Session, import_id: str) -> ImportRow | None:
    """Lock an import that waits; None if it does not, or another worker is taking it."""
    query = select(ImportRow).where(
        ImportRow.id == import_id, ImportRow.state == ImportState.QUEUED
    )
    return session.scalar(query.with_for_update(skip_locked=True))


def expired_one(session: Session) -> ImportRow | None:
    """Lock an import whose worker is silent; None if there is none."""
    query = select(ImportRow).where(
        ImportRow.state == ImportState.RUNNING,
        ImportRow.lease_expires_at <= func.clock_timestamp(),
    )
    return session.scalar(query.limit(1).with_for_update(skip_locked=True))


def active_of(session: Session, dataset_id: str) -> Sequence[ImportRow]:
    """Lock and return a dataset's imports that have not ended."""
    query = select(ImportRow).where(
        ImportRow.dataset_id == dataset_id, ImportRow.state.in_(ACTIVE_IMPORT_STATES)
    )
    return session.scalars(query.order_by(ImportRow.id).with_for_update()).all()


def heartbeat(
    connection: Session | Connection, import_id: str, fencing_token: int, *, lease_s: float
) -> None:
    """Prolong a lease; ``LeaseLostError`` if it is not held any more."""
    prolong(
        connection,
        ImportRow,
        ImportRow.id == import_id,
        ImportRow.fencing_token == fencing_token,
        ImportRow.state == ImportState.RUNNING,
        lease_s=lease_s,
        what="import",
    )
