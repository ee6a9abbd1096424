"""The outbox: what must happen after the transaction that asked for it, at least once."""

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from app.ledger.tables import OutboxRow


class Topic(StrEnum):
    """What the dispatcher is asked to do, and with what."""

    SCHEDULE_MODEL = "schedule_model"
    ENQUEUE_RUN = "enqueue_run"


def post(session: Session, topic: Topic, subject_id: str, *, delay_s: float = 0.0) -> None:
    """Ask the dispatcher for something, not before ``delay_s`` seconds from now."""
    session.add(
        OutboxRow(
            topic=topic,
            subject_id=subject_id,
            available_at=func.clock_timestamp() + timedelta(seconds=delay_s),
        )
    )


def due(session: Session, topic: Topic, *, limit: int = 100) -> Sequence[OutboxRow]:
    """Lock and return rows whose time has come; rows that others hold are skipped.

    A row from the future is due: the clock was set back, and nobody knows how long it has waited.
    """
    now = func.clock_timestamp()
    query = (
        select(OutboxRow)
        .where(
            OutboxRow.topic == topic,
            or_(OutboxRow.available_at <= now, OutboxRow.posted_at > now),
        )
        .order_by(OutboxRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return session.scalars(query).all()
