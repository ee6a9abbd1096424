"""The outbox: what must happen after the transaction that asked for it, at least once."""

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.orm import Session

from app.ledger.tables import OutboxRow
from app.runtime.database.wakeups import Signal, wake


class Topic(StrEnum):
    """A task for the dispatcher, and its subject."""

    SCHEDULE_MODEL = "schedule_model"
    ENQUEUE_RUN = "enqueue_run"
    ENQUEUE_MEMBERS = "enqueue_members"


def post(session: Session, topic: Topic, subject_id: str, *, delay_s: float = 0.0) -> None:
    """Ask the dispatcher for something, not before ``delay_s`` seconds from now."""
    session.add(
        OutboxRow(
            topic=topic,
            subject_id=subject_id,
            available_at=func.clock_timestamp() + timedelta(seconds=delay_s),
        )
    )
    if not delay_s:
        wake(session, Signal.DUE)


def due_subjects(session: Session, topic: Topic) -> Sequence[str]:
    """Return, without a lock and each once, the subjects of rows whose time has come."""
    query = select(OutboxRow.subject_id).where(*_due(topic)).distinct()
    return session.scalars(query.order_by(OutboxRow.subject_id)).all()


def remove(session: Session, topic: Topic, subject_id: str) -> bool:
    """Remove a subject's rows whose time has come, as their task is done; say whether any had."""
    mine = delete(OutboxRow).where(OutboxRow.subject_id == subject_id, *_due(topic))
    return bool(session.scalars(mine.returning(OutboxRow.id)).all())


def due(session: Session, topic: Topic, *, limit: int = 100) -> Sequence[OutboxRow]:
    """Lock and return rows whose time has come; rows that others hold are skipped."""
    query = (
        select(OutboxRow)
        .where(*_due(topic))
        .order_by(OutboxRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return session.scalars(query).all()


def _due(topic: Topic) -> tuple[ColumnElement[bool], ...]:
    # A row from the future is due: the clock was set back, so its waiting time is unknown.
    now = func.clock_timestamp()
    return OutboxRow.topic == topic, or_(OutboxRow.available_at <= now, OutboxRow.posted_at > now)
