"""``/failures``: what failed, why, and a button to retry."""

from fastapi import Request, Response

from app.api.protocol.access import ServicesOf
from app.domain.scopes import Scope
from app.ledger import run_views
from app.web import pages, queries
from app.web.access import AnyVisitor
from app.web.rendering import render

router = pages.router()

_MOST = 100


@router.get("/failures")
def show(request: Request, services: ServicesOf, visitor: AnyVisitor) -> Response:
    """Show the failures visible to the key."""
    may_requests = visitor.caller.allows(Scope.FORGET_READ)
    may_runs = visitor.caller.allows(Scope.MODELS_READ)
    with services.database.transaction() as session:
        requests = queries.failed_requests(session, limit=_MOST) if may_requests else None
        runs = run_views.failed(session, limit=_MOST) if may_runs else None
    return render(request, "failures.html", visitor, requests=requests, runs=runs)
