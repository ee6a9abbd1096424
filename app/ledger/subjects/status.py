"""The status of a data subject request, which follows the forget requests that it made."""

from collections.abc import Collection
from datetime import UTC
from typing import Any

from sqlalchemy import event, select
from sqlalchemy.orm import Session

from app.delivery.callbacks.events import emit
from app.domain.states import RequestState, SubjectRequestStatus
from app.evidence import log
from app.ledger.tables import ForgetRequestRow, SubjectRequestRow
from app.runtime.database.queries import known

API_VERSION = "2.0"
_PENDING = "expunge.subject_requests.pending"


def status_of(states: Collection[str]) -> SubjectRequestStatus:
    """Return the status of a subject request whose forget requests have these states.

    OpenDSR has no failure: what failed here counts as in progress until it is tried again. Nor has
    it a part that is given up: where one was cancelled, the whole is cancelled, never completed.
    """
    ended = {RequestState.COMPLETED, RequestState.CANCELLED}
    if ended.issuperset(states):
        cancelled = RequestState.CANCELLED in states
        return SubjectRequestStatus.CANCELLED if cancelled else SubjectRequestStatus.COMPLETED
    if {RequestState.ACCEPTED, RequestState.CANCELLED}.issuperset(states):
        return SubjectRequestStatus.PENDING
    return SubjectRequestStatus.IN_PROGRESS


def find(session: Session, subject_request_id: str, *, api_key_id: str) -> SubjectRequestRow:
    """Return a caller's subject request; ``NotFoundError`` if it has none of this id."""
    query = select(SubjectRequestRow).where(
        SubjectRequestRow.api_key_id == api_key_id,
        SubjectRequestRow.subject_request_id == subject_request_id,
    )
    return known(session.scalar(query), "subject request", subject_request_id)


def follow(session: Session, request: ForgetRequestRow) -> None:
    """Update status and deadline of a request's subject request when the transaction commits.

    Not earlier: two transactions that change requests of the same people in different orders would
    deadlock. At the end, each takes the locks in the same order.
    """
    if request.subject_request_id is not None:
        session.info.setdefault(_PENDING, set()).add(request.subject_request_id)


@event.listens_for(Session, "before_commit", insert=True)  # before the log writes its entries
def _settle_pending(session: Session) -> None:
    for subject_request_id in sorted(session.info.pop(_PENDING, ())):
        settle(
            session, session.get_one(SubjectRequestRow, subject_request_id, with_for_update=True)
        )


@event.listens_for(Session, "after_soft_rollback")
def _drop_pending(session: Session, _previous: object) -> None:
    session.info.pop(_PENDING, None)


def settle(session: Session, row: SubjectRequestRow) -> None:
    """Derive status and deadline from those of its forget requests; the caller holds its lock."""
    # Columns, not rows: another transaction's change of another request must be seen.
    request = ForgetRequestRow
    query = select(request.state, request.due_at).where(request.subject_request_id == row.id)
    parts = session.execute(query).all()
    due_at = max([row.due_at, *(part.due_at for part in parts)])
    is_extended = row.status is not None and due_at > row.due_at
    row.due_at = due_at
    status = status_of([part.state for part in parts])
    if status == row.status and not is_extended:
        return
    what = "extended" if status == row.status else str(status)
    row.status = status
    session.flush()
    log.append(session, f"subject_request.{what}", subject_request=row.id)
    emit(
        session,
        f"subject_request.{what}",
        document(row),
        subject_request_id=row.id,
        final=status in (SubjectRequestStatus.COMPLETED, SubjectRequestStatus.CANCELLED),
    )


def document(row: SubjectRequestRow) -> dict[str, Any]:
    """Return a subject request's status in the form of section 8.3 of OpenDSR 2.0."""
    return {
        "controller_id": row.api_key_id,
        "expected_completion_time": row.due_at.astimezone(UTC).isoformat(),
        "subject_request_id": row.subject_request_id,
        "request_status": row.status,
        "api_version": API_VERSION,
        "results_url": None,
    }
