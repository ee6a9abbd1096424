"""``/audit``: who did what, with filters, and as a file."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from fastapi import Query, Response
from fastapi.responses import StreamingResponse

from app.access import audit_trail
from app.access.audit_trail import AuditEntry
from app.api.protocol.access import ServicesOf
from app.api.protocol.cursors import PageByIndex
from app.services import Services
from app.web import pages
from app.web.access import Admin
from app.web.rendering import render

router = pages.router()

_AT_ONCE = 1000
_COLUMNS = ("index", "recorded_at", "kind", "by", "name", "facts")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
Word = Annotated[str, Query(max_length=200)]


@router.get("/audit")
def show_all(
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


@router.get("/audit/export")
def export(
    services: ServicesOf,
    _: Admin,
    form: Literal["csv", "jsonl"] = "csv",
    caller: Word = "",
    kind: Word = "",
) -> StreamingResponse:
    """Return all of them as CSV or as lines of JSON, newest first."""
    spelt = _csv if form == "csv" else _json_lines
    pages_of = _pages(services, caller or None, kind or None)
    return StreamingResponse(
        (spelt(entries, first) for first, entries in pages_of),
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


def _json_lines(entries: Sequence[AuditEntry], _: bool) -> str:  # noqa: FBT001 - as _csv
    return "".join(json.dumps(_row(entry)) + "\n" for entry in entries)


def _csv(entries: Sequence[AuditEntry], first: bool) -> str:  # noqa: FBT001 - of each page
    text = io.StringIO()
    writer = csv.writer(text)
    if first:
        writer.writerow(_COLUMNS)
    for entry in entries:
        row = _row(entry) | {"facts": json.dumps(entry.facts)}
        writer.writerow([_cell(row[column]) for column in _COLUMNS])
    return text.getvalue()


def _cell(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
