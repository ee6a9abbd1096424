"""``/requests``: forget requests, their obligations, and retries."""

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from app.api.protocol.access import ServicesOf
from app.api.protocol.cursors import cut, decode_cursor, encode_cursor
from app.domain.states import RequestState
from app.ledger import repository, request_views
from app.log import actor
from app.web import pages, queries
from app.web.access import RequestsReader, RequestsSender
from app.web.rendering import render

router = pages.router()

_PAGE = 50


@router.get("/requests")
def show_all(
    request: Request,
    services: ServicesOf,
    visitor: RequestsReader,
    state: str = "",
    model: str = "",
    cursor: str | None = None,
) -> Response:
    """List requests, newest first."""
    wanted = RequestState(state) if state in list(RequestState) else None
    with services.database.transaction() as session:
        rows = repository.requests(
            session,
            state=wanted,
            model=model or None,
            after=decode_cursor(cursor),
            limit=_PAGE + 1,
        )
        page, next_cursor = cut(rows, _PAGE, lambda row: encode_cursor(row.received_at, row.id))
        lines = list(request_views.read(session, [row.id for row in page]).values())
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
        first=cursor is None,
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
