"""What a person decides on a request: it is refused, reopened, or its deadline is extended.

A request that is held is ``received``: its deadline runs, and nothing is forgotten. It is accepted
as any other (``accepting.py``), or refused. Each decision may be repeated: it is made once. The log
says who made it; what a person wrote may name people, so the log has only the row's digest, which
binds it.
"""

from calendar import monthrange
from datetime import UTC, datetime

from sqlalchemy import func
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, InvalidInputError
from app.domain.states import ENDED_REQUEST_STATES, Ground, RequestState
from app.evidence import log
from app.ledger import repository, transitions
from app.ledger.subjects.status import follow
from app.ledger.tables import ForgetRequestRow
from app.registry.datasets import repository as datasets
from app.runtime.database.queries import database_time


def refuse(
    session: Session, request_id: str, ground: Ground, explanation: str | None
) -> ForgetRequestRow:
    """End a request that is held; nothing was forgotten for it, and nothing will be.

    Raises:
        ConflictError: it was accepted, or refused otherwise.
        InvalidInputError: another ground, and no explanation.
    """
    if ground == Ground.OTHER and explanation is None:
        raise InvalidInputError("explain another ground than those of Art. 17(3)")
    request = _locked(session, request_id)
    if (request.ground, request.explanation) == (ground, explanation):
        return request
    if request.state != RequestState.RECEIVED:
        raise ConflictError(f"the request is {request.state}; only a received one can be refused")
    request.ground, request.explanation = ground, explanation
    request.refused_at = func.clock_timestamp()
    transitions.enter(session, request, RequestState.REFUSED, ground=ground)
    return request


def reopen(session: Session, request_id: str) -> ForgetRequestRow:
    """Let a refused request be decided on again; its deadline is the one that it had."""
    request = _locked(session, request_id)
    if request.state == RequestState.RECEIVED:
        return request
    if request.state != RequestState.REFUSED:
        raise ConflictError(f"the request is {request.state}; only a refused one can be reopened")
    if request.salt is None:
        raise ConflictError("the evidence of the request is destroyed: make a new one")
    request.ground = request.explanation = request.refused_at = None
    transitions.enter(session, request, RequestState.RECEIVED)
    return request


def extend(session: Session, request_id: str, reason: str) -> ForgetRequestRow:
    """Extend an open request's deadline by two months, once and before it has passed (Art. 12(3)).

    Raises:
        ConflictError: it has ended or is overdue, or was extended for another reason.
    """
    request = _locked(session, request_id)
    if request.extension_reason == reason:
        return request
    if request.extension_reason is not None:
        raise ConflictError("the deadline was extended before; that is done once")
    if request.state in (*ENDED_REQUEST_STATES, RequestState.REFUSED):
        raise ConflictError(f"the request is {request.state}; its deadline is over")
    if request.due_at <= database_time(session):
        raise ConflictError("the deadline has passed; it is extended before that or not at all")
    request.extension_reason = reason
    request.due_at = _two_months_after(request.due_at)
    request.due_soon_noted_at = None  # it is warned of again
    log.append(session, "request.extended", request=request.id, due_at=request.due_at.isoformat())
    transitions.notify(session, request, "extended")
    follow(session, request)
    return request


def _locked(session: Session, request_id: str) -> ForgetRequestRow:
    # A lock of the dataset, as all have who lock requests.
    datasets.lock_dataset(session, repository.request(session, request_id).dataset_id)
    return repository.request(session, request_id, lock=True)


def _two_months_after(moment: datetime) -> datetime:
    """Return the same day and time in UTC two months later, or that month's last day."""
    moment = moment.astimezone(UTC)
    year, month = divmod(moment.year * 12 + moment.month + 1, 12)
    day = min(moment.day, monthrange(year, month + 1)[1])
    return moment.replace(year=year, month=month + 1, day=day)
