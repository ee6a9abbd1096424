"""A request's state changes, with their log entries and callbacks.

One transaction: the state, the log entry and the events commit together.
"""

from datetime import UTC

from sqlalchemy.orm import Session

from app.delivery.callbacks.events import emit
from app.domain.states import ENDED_REQUEST_STATES, RequestState
from app.evidence import log
from app.ledger.subjects.status import follow
from app.ledger.tables import ForgetRequestRow


def enter(
    session: Session, request: ForgetRequestRow, state: RequestState, **facts: object
) -> None:
    """Move a request to a state; ``facts`` are for the log.

    The session must hold the request's lock, or have made it.
    """
    request.state = state
    log.append(session, f"request.{state}", request=request.id, **facts)
    notify(session, request, str(state), final=state in ENDED_REQUEST_STATES)
    follow(session, request)


def notify(session: Session, request: ForgetRequestRow, what: str, *, final: bool = False) -> None:
    """Make an event ``forget_request.<what>`` for each of the request's addresses."""
    if request.callback_count:
        facts = {
            "request": request.id,
            "state": request.state,
            "received_at": request.received_at.astimezone(UTC).isoformat(),
            "due_at": request.due_at.astimezone(UTC).isoformat(),
        }
        emit(session, f"forget_request.{what}", facts, request_id=request.id, final=final)
