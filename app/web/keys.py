"""``/keys``: API keys: made and shown once, limited by scopes and an end, revoked."""

from collections.abc import Mapping
from datetime import UTC, datetime

from fastapi import Response
from pydantic import TypeAdapter, ValidationError

from app.access import api_keys
from app.api.protocol.access import ServicesOf
from app.api.protocol.cursors import PageByMoment
from app.api.protocol.schemas import Name
from app.domain.errors import InvalidInputError
from app.domain.scopes import Scope
from app.web import pages
from app.web.access import Admin, AdminSender
from app.web.forms import Form
from app.web.rendering import render

router = pages.router()

_Name = TypeAdapter(Name)


@router.get("/keys")
def show_all(services: ServicesOf, visitor: Admin, page: PageByMoment) -> Response:
    """List callers, newest first, and ask for a new key."""
    with services.database.transaction() as session:
        rows = api_keys.keys(session, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: (row.created_at, row.id))
        return render(
            "keys.html",
            visitor,
            keys=rows,
            scopes=list(Scope),
            first=page.after is None,
            next_cursor=next_cursor,
        )


@router.post("/keys")
def create(services: ServicesOf, visitor: AdminSender, form: Form) -> Response:
    """Create a key, and show its secret: this once."""
    try:
        name = _Name.validate_python(form.get("name", ""))
    except ValidationError as error:
        raise InvalidInputError(
            "a name has letters, digits, dots, hyphens and underscores, and at most 100 of them"
        ) from error
    scopes = [scope for scope in Scope if scope in form]
    if not scopes:
        raise InvalidInputError("choose at least one scope")
    with services.database.transaction() as session:
        row, secret = api_keys.create_key(session, name=name, scopes=scopes, expires_at=_end(form))
        return render("new_key.html", visitor, status=201, key=row, secret=secret)


@router.post("/keys/{key_id}/revoke")
def revoke(key_id: str, services: ServicesOf, _: AdminSender) -> Response:
    """Revoke a key, effective immediately."""
    with services.database.transaction() as session:
        api_keys.revoke(session, key_id)
    return pages.redirect("/keys")


def _end(form: Mapping[str, str]) -> datetime | None:
    """Return the end of the last day on which a key is valid, in UTC; None for never."""
    day = form.get("expires_on", "")
    if not day:
        return None
    try:
        return datetime.strptime(day, "%Y-%m-%d").replace(hour=23, minute=59, second=59, tzinfo=UTC)
    except ValueError as error:
        raise InvalidInputError("the last day is a date such as 2030-01-31") from error
