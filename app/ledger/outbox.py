"""The outbox: what must happen after the transaction that asked for it, at least once."""

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import func, select
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
    """Lock and return rows whose time has come; rows that others hold are skipped."""
    query = (
        select(OutboxRow)
        .where(OutboxRow.topic == topic, OutboxRow.available_at <= func.clock_timestamp())
        .order_by(OutboxRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return session.scalars(query).all()
