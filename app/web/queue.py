"""``/queue``: open requests by deadline, and why they are not done yet; ``/workers``: who works."""

from fastapi import Response
from redis import RedisError
from sqlalchemy import func, select

from app.api.protocol.access import ServicesOf
from app.domain.states import UNMET_OBLIGATION_STATES, RequestState
from app.ledger.deadlines import IS_OPEN
from app.ledger.tables import OutboxRow
from app.ledger.views import request_views, run_views
from app.operations.monitoring.queue_state import QueueState, queue_state
from app.web import pages
from app.web.access import ModelsReader, RequestsReader, SessionsOf
from app.web.rendering import render
from app.web.sessions import Sessions

router = pages.router()

_MOST = 200


@router.get("/queue")
def show(services: ServicesOf, sessions: SessionsOf, visitor: RequestsReader) -> Response:
    """Show the queue: what failed first, then the earliest deadline."""
    with services.database.transaction() as session:
        lines = request_views.most_urgent(session, IS_OPEN, limit=_MOST + 1)
        runs = {run.model: run for run in run_views.active(session)}
    found = queue_or_none(sessions)
    return render(
        "queue.html",
        visitor,
        waiting=sorted(lines[:_MOST], key=lambda line: line.state != RequestState.FAILED),
        runs=runs,
        idle=found is not None and not found.workers,
        unmet=UNMET_OBLIGATION_STATES,
        most=_MOST if len(lines) > _MOST else None,
    )


@router.get("/workers")
def show_workers(services: ServicesOf, sessions: SessionsOf, visitor: ModelsReader) -> Response:
    """Show workers, the queue and the outbox."""
    with services.database.transaction() as session:
        runs = run_views.active(session)
        outbox = session.scalar(select(func.count()).select_from(OutboxRow))
    return render("workers.html", visitor, queue=queue_or_none(sessions), runs=runs, outbox=outbox)


def queue_or_none(sessions: Sessions) -> QueueState | None:
    """Return the queue's state, or None if Redis cannot be reached."""
    try:
        return queue_state(sessions.redis)
    except RedisError:
        return None
