"""The log as an audit trail: who did what, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.access.tables import ApiKeyRow
from app.certificates import strict_json
from app.log.tables import LogEntryRow

# As the index has it. Within a value the quotes would be escaped, so this can only be the member.
_CAUSED_BY = text("""substring(body FROM '"by":"([^"]*)"') = :caller""")


@dataclass(frozen=True)
class Deed:
    """One entry of the log, and who caused it.

    Attributes:
        index: of the entry.
        kind: what was decided.
        by: a caller's id, ``operator`` or ``service``.
        name: the caller's name, if it is one of the API.
        recorded_at: when.
        facts: all else that the entry says.
    """

    index: int
    kind: str
    by: str
    name: str | None
    recorded_at: datetime
    facts: dict[str, Any]


def deeds(
    session: Session,
    *,
    limit: int,
    caller: str | None = None,
    kind: str | None = None,
    before: int | None = None,
) -> Sequence[Deed]:
    """Return at most ``limit`` entries, newest first.

    Args:
        session: the database.
        limit: how many.
        caller: only those caused by this one.
        kind: only those of this kind.
        before: only entries with a smaller index.
    """
    query = select(LogEntryRow.index, LogEntryRow.body).order_by(LogEntryRow.index.desc())
    if caller is not None:
        query = query.where(_CAUSED_BY.bindparams(caller=caller))
    if kind is not None:
        query = query.where(LogEntryRow.kind == kind)
    if before is not None:
        query = query.where(LogEntryRow.index < before)
    entries = [
        (index, strict_json.loads(body)) for index, body in session.execute(query.limit(limit))
    ]
    names = _names(session, {facts["by"] for _, facts in entries})
    return [_deed(index, facts, names) for index, facts in entries]


def _names(session: Session, callers: set[str]) -> dict[str, str]:
    query = select(ApiKeyRow.id, ApiKeyRow.name).where(ApiKeyRow.id.in_(callers))
    return {caller: name for caller, name in session.execute(query)}  # noqa: C416 - rows to pairs


def _deed(index: int, facts: dict[str, Any], names: dict[str, str]) -> Deed:
    by = facts.pop("by")
    return Deed(
        index=index,
        kind=facts.pop("kind"),
        by=by,
        name=names.get(by),
        recorded_at=datetime.fromisoformat(facts.pop("recorded_at")),
        facts=facts,
    )
