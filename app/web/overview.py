"""``/``: what needs attention, and is in progress; ``/failures``: what failed, to be retried."""

from fastapi import Response
from sqlalchemy.orm import Session

from app.api.protocol.access import ServicesOf
from app.domain.scopes import Scope
from app.domain.states import RequestState
from app.ledger.deadlines import IS_OPEN
from app.ledger.tables import ForgetRequestRow
from app.ledger.views import request_views, run_views
from app.operations.monitoring import ledger_metrics
from app.web import pages
from app.web.access import AnyVisitor, SessionsOf, Visitor
from app.web.models import model_lines
from app.web.queue import queue_or_none
from app.web.rendering import render

router = pages.router()

_LISTED = 8
_MOST = 100


@router.get("/")
def show(services: ServicesOf, sessions: SessionsOf, visitor: AnyVisitor) -> Response:
    """Show the parts visible to the key."""
    with services.database.transaction() as session:
        requests = _requests(session) if visitor.caller.allows(Scope.FORGET_READ) else None
        work = _work(session, visitor)
    queue = queue_or_none(sessions) if work is not None else None
    return render("overview.html", visitor, requests=requests, work=work, queue=queue)


def _requests(session: Session) -> dict[str, object]:
    return {
        "counts": ledger_metrics.requests_by_state(session),
        "overdue": ledger_metrics.overdue_requests(session),
        "owed": request_views.most_urgent(session, IS_OPEN, limit=_LISTED),
    }


def _work(session: Session, visitor: Visitor) -> dict[str, object] | None:
    if not visitor.caller.allows(Scope.MODELS_READ):
        return None
    return {
        "runs": run_views.active(session),
        "failed": run_views.failed(session, limit=_LISTED),
        "models": model_lines(session),
    }


@router.get("/failures")
def show_failures(services: ServicesOf, visitor: AnyVisitor) -> Response:
    """Show the failures visible to the key."""
    may_requests = visitor.caller.allows(Scope.FORGET_READ)
    may_runs = visitor.caller.allows(Scope.MODELS_READ)
    failed = ForgetRequestRow.state == RequestState.FAILED
    with services.database.transaction() as session:
        requests = request_views.most_urgent(session, failed, limit=_MOST) if may_requests else None
        runs = run_views.failed(session, limit=_MOST) if may_runs else None
    return render("failures.html", visitor, requests=requests, runs=runs)
