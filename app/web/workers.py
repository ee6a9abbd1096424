"""``/workers``: live workers and the queue."""

from fastapi import Response
from redis import RedisError
from sqlalchemy import func, select

from app.api.protocol.access import ServicesOf
from app.ledger.tables import OutboxRow
from app.ledger.views import run_views
from app.monitoring.queue_state import QueueState, queue_state
from app.web import pages
from app.web.access import ModelsReader, SessionsOf
from app.web.rendering import render
from app.web.sessions import Sessions

router = pages.router()


@router.get("/workers")
def show(services: ServicesOf, sessions: SessionsOf, visitor: ModelsReader) -> Response:
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
