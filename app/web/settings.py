"""``/settings``: API keys, made and shown once, and revoked; who did what, also as a file."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter, ValidationError

from app.access import api_keys, audit_trail
from app.access.audit_trail import AuditEntry
from app.api.protocol.access import ServicesOf
from app.api.protocol.schemas import Name, PageByIndex, PageByMoment
from app.domain.errors import InvalidInputError
from app.domain.states import Scope
from app.services import Services
from app.web import pages
from app.web.access import Admin, AdminSender, Form
from app.web.pages import render

router = pages.router()

_AT_ONCE = 1000
_COLUMNS = ("index", "recorded_at", "kind", "by", "name", "facts")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
Word = Annotated[str, Query(max_length=200)]
_Name = TypeAdapter(Name)


@router.get("/settings")
def show(services: ServicesOf, visitor: Admin, page: PageByMoment) -> Response:
    """List callers, newest first, and ask for a new key."""
    with services.database.transaction() as session:
        rows = api_keys.keys(session, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: (row.created_at, row.id))
        return render(
            "settings.html",
            visitor,
            keys=rows,
            scopes=list(Scope),
            first=page.after is None,
            next_cursor=next_cursor,
        )


@router.post("/settings/keys")
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


@router.post("/settings/keys/{key_id}/revoke")
def revoke(key_id: str, services: ServicesOf, _: AdminSender) -> Response:
    """Revoke a key, effective immediately."""
    with services.database.transaction() as session:
        api_keys.revoke(session, key_id)
    return pages.redirect("/settings")


@router.get("/settings/audit")
def show_audit_trail(
    services: ServicesOf, visitor: Admin, page: PageByIndex, caller: Word = "", kind: Word = ""
) -> Response:
    """List who did what, newest first."""
    with services.database.transaction() as session:
        entries = audit_trail.newest_entries(
            session,
            caller=caller or None,
            kind=kind or None,
            before=page.after,
            limit=page.limit + 1,
        )
    entries, next_cursor = page.cut(entries, lambda entry: entry.index)
    return render(
        "audit.html",
        visitor,
        entries=entries,
        who=caller,
        kind=kind,
        first=page.after is None,
        next_cursor=next_cursor,
    )


@router.get("/settings/audit/export")
def export(
    services: ServicesOf,
    _: Admin,
    form: Literal["csv", "jsonl"] = "csv",
    caller: Word = "",
    kind: Word = "",
) -> StreamingResponse:
    """Return all of them as CSV or as lines of JSON, newest first."""
    parts = (
        _csv(entries, first)
        if form == "csv"
        else "".join(json.dumps(_row(entry)) + "\n" for entry in entries)
        for first, entries in _pages(services, caller or None, kind or None)
    )
    return StreamingResponse(
        parts,
        media_type="text/csv; charset=utf-8" if form == "csv" else "application/jsonl",
        headers={"Content-Disposition": f'attachment; filename="audit-trail.{form}"'},
    )


def _pages(
    services: Services, caller: str | None, kind: str | None
) -> Iterator[tuple[bool, Sequence[AuditEntry]]]:
    before: int | None = None
    while True:
        with services.database.transaction() as session:
            entries = audit_trail.newest_entries(
                session, caller=caller, kind=kind, before=before, limit=_AT_ONCE
            )
        yield before is None, entries
        if len(entries) < _AT_ONCE:
            return
        before = entries[-1].index


def _row(entry: AuditEntry) -> dict[str, object]:
    return vars(entry) | {"recorded_at": entry.recorded_at.isoformat()}


def _csv(entries: Sequence[AuditEntry], first: bool) -> str:  # noqa: FBT001 - of each page
    text = io.StringIO()
    writer = csv.writer(text)
    if first:
        writer.writerow(_COLUMNS)
    for entry in entries:
        row = _row(entry) | {"facts": json.dumps(entry.facts)}
        cells = ("" if row[column] is None else str(row[column]) for column in _COLUMNS)
        # So that no spreadsheet takes one for a formula.
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in cells])
    return text.getvalue()


def _end(form: Mapping[str, str]) -> datetime | None:
    """Return the end of the last day on which a key is valid, in UTC; None for never."""
    day = form.get("expires_on", "")
    if not day:
        return None
    try:
        return datetime.strptime(day, "%Y-%m-%d").replace(hour=23, minute=59, second=59, tzinfo=UTC)
    except ValueError as error:
        raise InvalidInputError("the last day is a date such as 2030-01-31") from error
