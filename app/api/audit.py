"""``/v1/audit``: who did what."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.api.access import Admin, GuardedRoute, ServicesOf
from app.api.errors import problem_responses
from app.api.schemas import Answer
from app.ledger import audit

router = APIRouter(prefix="/v1/audit", tags=["log"], route_class=GuardedRoute)

Word = Annotated[str | None, Query(min_length=1, max_length=200)]


class DeedAnswer(Answer):
    """One entry of the log. ``by`` is a caller's id, ``operator`` or ``service``.

    It is null in entries from before this was noted. ``name`` is the name of a caller's key.
    """

    index: int
    kind: str
    by: str | None
    name: str | None
    recorded_at: datetime
    facts: dict[str, Any]


class DeedsAnswer(Answer):
    """Deeds, newest first. ``next`` is the ``before`` with which to go on, if there are more."""

    deeds: list[DeedAnswer]
    next: int | None


@router.get("", responses=problem_responses())
def list_deeds(
    services: ServicesOf,
    _: Admin,
    caller: Word = None,
    kind: Word = None,
    before: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> DeedsAnswer:
    """List who did what, newest first; of one caller or of one kind, if asked for."""
    with services.database.transaction() as session:
        found = audit.deeds(session, caller=caller, kind=kind, before=before, limit=limit + 1)
    page = found[:limit]
    return DeedsAnswer(
        deeds=[DeedAnswer(**vars(deed)) for deed in page],
        next=page[-1].index if len(found) > limit else None,
    )
