"""``/v1/audit``: who did what."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.access import audit_trail
from app.api.protocol.access import Admin, GuardedRoute, ServicesOf
from app.api.protocol.cursors import PageByIndex
from app.api.protocol.errors import problem_responses
from app.api.protocol.schemas import Answer, Page

router = APIRouter(prefix="/v1/audit", tags=["log"], route_class=GuardedRoute)

Word = Annotated[str | None, Query(min_length=1, max_length=200)]


class DeedAnswer(Answer):
    """One entry of the log.

    ``by`` is a caller's id, ``operator`` or ``service``; ``name`` is the name of a caller's key.
    """

    index: int
    kind: str
    by: str
    name: str | None
    recorded_at: datetime
    facts: dict[str, Any]


class DeedPage(Page[DeedAnswer]):
    """A page of the audit trail, newest first."""


@router.get("", responses=problem_responses())
def list_deeds(
    services: ServicesOf,
    _: Admin,
    page: PageByIndex,
    caller: Word = None,
    kind: Word = None,
) -> DeedPage:
    """List who did what, newest first; optionally filtered by caller or kind."""
    with services.database.transaction() as session:
        found = audit_trail.deeds(
            session, caller=caller, kind=kind, before=page.after, limit=page.limit + 1
        )
    found, next_cursor = page.cut(found, lambda deed: deed.index)
    return DeedPage(
        items=[DeedAnswer.model_validate(deed) for deed in found], next_cursor=next_cursor
    )
