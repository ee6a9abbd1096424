"""Deadlines: one warning before a request is due, and one when it is overdue.

A warning is an entry of the log, of kind ``request.due_soon`` or ``request.overdue`` with the
request's id and ``due_at``, in the transaction that records it on the request; and a callback,
where the request asked for them. Models that owe such a request and have no run are planned for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from app.domain.states import ObligationState, RequestState
from app.evidence import log
from app.ledger import outbox, repository, transitions
from app.ledger.tables import ForgetRequestRow

DUE_SOON = "request.due_soon"
OVERDUE = "request.overdue"
IS_OPEN = and_(
    ForgetRequestRow.completed_at.is_(None), ForgetRequestRow.state != RequestState.REFUSED
)
"""A deadline counts until a request is refused, or its records are erased, also if cancelled."""
WARNING_S = 7 * 86400.0
_AT_ONCE = 100


@dataclass(frozen=True)
class DeadlineWarning:
    """One warning that was recorded; ``kind`` is ``DUE_SOON`` or ``OVERDUE``."""

    kind: str
    request_id: str
    due_at: datetime


def note_deadlines(session: Session, *, warning_s: float = WARNING_S) -> Sequence[DeadlineWarning]:
    """Record which requests are near or past their deadlines; a hundred at once, oldest first.

    A request that is overdue before the first warning gets both warnings. Requests that another
    transaction holds are left for the next time. The first warning comes ``warning_s`` before the
    deadline, or after half of a time that is shorter than twice that.
    """
    request = ForgetRequestRow
    whole_s = func.extract("epoch", request.due_at - request.received_at)
    left_s = func.extract("epoch", request.due_at - func.clock_timestamp())
    is_late = left_s <= 0
    is_near = left_s <= func.least(warning_s, whole_s / 2)
    query = (
        select(request, is_late)
        .where(
            IS_OPEN,
            request.overdue_noted_at.is_(None),
            request.due_at <= func.clock_timestamp() + timedelta(seconds=warning_s),
            or_(is_late, and_(request.due_soon_noted_at.is_(None), is_near)),
        )
        .order_by(request.due_at)
        .limit(_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    warnings: list[DeadlineWarning] = []
    for row, late in session.execute(query).all():
        if row.due_soon_noted_at is None:
            row.due_soon_noted_at = func.clock_timestamp()
            warnings.append(_warn(session, DUE_SOON, row))
        if late:
            row.overdue_noted_at = func.clock_timestamp()
            warnings.append(_warn(session, OVERDUE, row))
    return warnings


def _warn(session: Session, kind: str, row: ForgetRequestRow) -> DeadlineWarning:
    for obligation in repository.obligations_of_request(session, row.id):
        if obligation.state == ObligationState.OPEN:  # its run may have been cancelled
            outbox.post(session, outbox.Topic.SCHEDULE_MODEL, obligation.model_id)
    due_at = row.due_at.astimezone(UTC).isoformat(timespec="seconds")
    log.append(session, kind, request=row.id, due_at=due_at)
    if row.state != RequestState.CANCELLED:  # its callbacks have ended
        transitions.notify(session, row, kind.removeprefix("request."))
    return DeadlineWarning(kind, row.id, row.due_at)
