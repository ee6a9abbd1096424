"""The log as an audit trail: who did what, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.access.tables import ApiKeyRow
from app.domain import strict_json
from app.evidence.log.tables import LogEntryRow

# As the index has it. Within a value the quotes would be escaped, so this can only be the member.
_CAUSED_BY = text("""substring(body FROM '"by":"([^"]*)"') = :caller""")


@dataclass(frozen=True)
class AuditEntry:
    """One entry of the log, and who caused it.

    ``by`` is a caller's id, ``operator`` or ``service``; ``name`` is the name of a caller's key.
    """

    index: int
    kind: str
    by: str
    name: str | None
    recorded_at: datetime
    facts: dict[str, Any]


def has_defined(session: Session, caller: str, dataset_id: str) -> bool:
    """Say whether a dataset is one that this caller defined."""
    query = select(LogEntryRow.index).where(
        _CAUSED_BY.bindparams(caller=caller),
        LogEntryRow.kind == "dataset.defined",
        LogEntryRow.body.contains(f'"dataset":"{dataset_id}"', autoescape=True),
    )
    return session.scalar(query) is not None


def newest_entries(
    session: Session,
    *,
    limit: int,
    caller: str | None = None,
    kind: str | None = None,
    before: int | None = None,
) -> Sequence[AuditEntry]:
    """Return at most ``limit`` entries, newest first; those with an index below ``before``."""
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
    callers = {facts["by"] for _, facts in entries}
    named = session.execute(select(ApiKeyRow.id, ApiKeyRow.name).where(ApiKeyRow.id.in_(callers)))
    names = {caller: name for caller, name in named}  # noqa: C416 - rows to pairs
    return [_parsed(index, facts, names) for index, facts in entries]


def _parsed(index: int, facts: dict[str, Any], names: dict[str, str]) -> AuditEntry:
    by = facts.pop("by")
    return AuditEntry(
        index=index,
        kind=facts.pop("kind"),
        by=by,
        name=names.get(by),
        recorded_at=datetime.fromisoformat(facts.pop("recorded_at")),
        facts=facts,
    )
