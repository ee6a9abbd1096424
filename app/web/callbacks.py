"""``/callbacks``: what was sent to requests' addresses, and sending it again."""

from fastapi import Response

from app.api.protocol.access import ServicesOf
from app.api.protocol.cursors import PageByMoment
from app.delivery.callbacks import repository
from app.delivery.callbacks.repository import EventState
from app.web import pages
from app.web.access import RequestsReader, RequestsSender
from app.web.rendering import render

router = pages.router()


@router.get("/callbacks")
def show_all(
    services: ServicesOf, visitor: RequestsReader, page: PageByMoment, state: str = ""
) -> Response:
    """List callbacks, newest first."""
    wanted = EventState(state) if state in list(EventState) else None
    with services.database.transaction() as session:
        rows = repository.events(
            session, state=wanted, request_id=None, after=page.after, limit=page.limit + 1
        )
        rows, next_cursor = page.cut(rows, lambda row: (row[0].created_at, row[0].id))
        return render(
            "callbacks.html",
            visitor,
            events=rows,
            states=list(EventState),
            wanted=wanted,
            first=page.after is None,
            next_cursor=next_cursor,
        )


@router.post("/callbacks/{callback_id}/redeliver")
def redeliver(callback_id: str, services: ServicesOf, _: RequestsSender) -> Response:
    """Send a callback again, whatever its state."""
    with services.database.transaction() as session:
        repository.redeliver(session, callback_id)
    return pages.redirect("/callbacks")
