"""``/v1/audit``: who did what."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.access import audit_trail
from app.api.protocol.access import Admin, GuardedRoute, ServicesOf
from app.api.protocol.cursors import DEFAULT_LIMIT, Cursor, Limit, cut, decode_number, encode_number
from app.api.protocol.errors import problem_responses
from app.api.protocol.schemas import Answer

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


class DeedPage(Answer):
    """A page of the audit trail, newest first."""

    items: list[DeedAnswer]
    next_cursor: str | None


@router.get("", responses=problem_responses())
def list_deeds(
    services: ServicesOf,
    _: Admin,
    caller: Word = None,
    kind: Word = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> DeedPage:
    """List who did what, newest first; optionally filtered by caller or kind."""
    before = decode_number(cursor, bits=63)
    with services.database.transaction() as session:
        found = audit_trail.deeds(session, caller=caller, kind=kind, before=before, limit=limit + 1)
    page, next_cursor = cut(found, limit, lambda deed: encode_number(deed.index))
    return DeedPage(
        items=[DeedAnswer.model_validate(deed) for deed in page], next_cursor=next_cursor
    )
