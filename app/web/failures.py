"""``/failures``: what failed, why, and a button to retry."""

from fastapi import Response

from app.api.protocol.access import ServicesOf
from app.domain.scopes import Scope
from app.domain.states import RequestState
from app.ledger.tables import ForgetRequestRow
from app.ledger.views import request_views, run_views
from app.web import pages
from app.web.access import AnyVisitor
from app.web.rendering import render

router = pages.router()

_MOST = 100


@router.get("/failures")
def show(services: ServicesOf, visitor: AnyVisitor) -> Response:
    """Show the failures visible to the key."""
    may_requests = visitor.caller.allows(Scope.FORGET_READ)
    may_runs = visitor.caller.allows(Scope.MODELS_READ)
    failed = ForgetRequestRow.state == RequestState.FAILED
    with services.database.transaction() as session:
        requests = request_views.most_urgent(session, failed, limit=_MOST) if may_requests else None
        runs = run_views.failed(session, limit=_MOST) if may_runs else None
    return render("failures.html", visitor, requests=requests, runs=runs)
