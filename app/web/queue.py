"""``/queue``: open requests by deadline, and why they are not done yet; ``/workers``: who works."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Response
from redis import RedisError
from sqlalchemy import func, select

from app.api.protocol.access import ServicesOf
from app.domain.states import UNMET_OBLIGATION_STATES, ObligationState, RequestState, RunState
from app.ledger.deadlines import IS_OPEN
from app.ledger.tables import OutboxRow
from app.ledger.views import request_views, run_views
from app.ledger.views.request_views import ObligationView, RequestView
from app.ledger.views.run_views import RunView
from app.monitoring.queue_state import QueueState, queue_state
from app.web import pages
from app.web.access import ModelsReader, RequestsReader, SessionsOf
from app.web.rendering import render, words
from app.web.sessions import Sessions

router = pages.router()

_MOST = 200


@dataclass(frozen=True)
class Waiting:
    """An open request, and why it is not completed: one reason for each model that owes it."""

    line: RequestView
    reasons: tuple[str, ...]


@router.get("/queue")
def show(services: ServicesOf, sessions: SessionsOf, visitor: RequestsReader) -> Response:
    """Show the queue: what failed first, then the earliest deadline."""
    with services.database.transaction() as session:
        lines = request_views.most_urgent(session, IS_OPEN, limit=_MOST + 1)
        runs = {run.model: run for run in run_views.active(session)}
    found = queue_or_none(sessions)
    idle = found is not None and not found.workers
    waiting = [Waiting(line, reasons_of(line, runs, idle=idle)) for line in lines[:_MOST]]
    waiting.sort(key=lambda each: each.line.state != RequestState.FAILED)  # keeps their order
    return render("queue.html", visitor, waiting=waiting, most=_MOST, more=len(lines) > _MOST)


def reasons_of(
    line: RequestView, runs: Mapping[str, RunView], *, idle: bool = False
) -> tuple[str, ...]:
    """Return why an open request is not completed.

    Args:
        line: the request.
        runs: the runs that are queued or going, by their models' names.
        idle: whether no worker is there.
    """
    if line.state == RequestState.CERTIFIED:
        return ("certified; the stored records are erased next",)
    owed = [each for each in line.obligations if each.state in UNMET_OBLIGATION_STATES]
    return tuple(f"{each.model}: {_reason(each, runs.get(each.model), idle=idle)}" for each in owed)


def _reason(owed: ObligationView, run: RunView | None, *, idle: bool) -> str:
    if owed.state == ObligationState.FAILED:
        return f"failed: {owed.failure_reason or 'see its run'}"
    if run is None:
        return "waits until its run is scheduled"
    if run.state == RunState.QUEUED:
        return f"its run is queued: {'no worker is there' if idle else 'it waits for a worker'}"
    if owed.state == ObligationState.OPEN:
        return "came after its present run had begun, and waits for the next one"
    steps = f", step {run.step} of {run.total_steps}" if run.total_steps else ""
    tried = f", attempt {run.attempt}" if run.attempt > 1 else ""
    return f"{words(run.phase)}{steps}{tried}"


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
