"""``/v1/audit``: who did what."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.access import audit_trail
from app.access.audit_trail import AuditEntry
from app.api.protocol.access import Admin, GuardedRoute, ServicesOf
from app.api.protocol.cursors import PageByIndex
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Page

router = APIRouter(prefix="/v1/audit", tags=["log"], route_class=GuardedRoute)

Word = Annotated[str | None, Query(min_length=1, max_length=200)]


@router.get("", **answers())
def list_audit_entries(
    services: ServicesOf,
    _: Admin,
    page: PageByIndex,
    caller: Word = None,
    kind: Word = None,
) -> Page[AuditEntry]:
    """List who did what, newest first; optionally filtered by caller or kind."""
    with services.database.transaction() as session:
        found = audit_trail.newest_entries(
            session, caller=caller, kind=kind, before=page.after, limit=page.limit + 1
        )
    return page.answer(found, lambda entry: entry.index, lambda entry: entry)
