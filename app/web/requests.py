"""``/requests``: forget requests, their obligations, and retries."""

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from app.api.protocol.access import ServicesOf
from app.api.protocol.cursors import PageByMoment
from app.domain.states import RequestState
from app.ledger import repository, request_views
from app.log import actor
from app.web import pages, queries
from app.web.access import RequestsReader, RequestsSender
from app.web.rendering import render

router = pages.router()


@router.get("/requests")
def show_all(
    request: Request,
    services: ServicesOf,
    visitor: RequestsReader,
    page: PageByMoment,
    state: str = "",
    model: str = "",
) -> Response:
    """List requests, newest first."""
    wanted = RequestState(state) if state in list(RequestState) else None
    with services.database.transaction() as session:
        rows = repository.requests(
            session,
            state=wanted,
            model=model or None,
            after=page.after,
            limit=page.limit + 1,
        )
        rows, next_cursor = page.cut(rows, lambda row: (row.received_at, row.id))
        lines = list(request_views.read(session, [row.id for row in rows]).values())
        names = queries.model_names(session)
    return render(
        request,
        "requests.html",
        visitor,
        lines=lines,
        models=names,
        states=list(RequestState),
        wanted=wanted,
        model=model,
        first=page.after is None,
        next_cursor=next_cursor,
    )


@router.get("/requests/{request_id}")
def show(
    request_id: str, request: Request, services: ServicesOf, visitor: RequestsReader
) -> Response:
    """Show one request with its obligations."""
    with services.database.transaction() as session:
        line = request_views.one(session, request_id)
    return render(request, "request.html", visitor, line=line)


@router.post("/requests/{request_id}/retry")
def retry(request_id: str, services: ServicesOf, visitor: RequestsSender) -> RedirectResponse:
    """Give a failed request another run."""
    acting = actor.acting_as(visitor.caller.key_id)
    with acting, services.database.transaction() as session:
        services.forget_requests.retry(session, request_id)
    return RedirectResponse(f"/requests/{request_id}", status_code=303)
