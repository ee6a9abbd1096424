"""The append-only log of everything that was decided.

Entries are canonical JSON, written in the transaction of the facts they record: ``append`` collects
them and they are inserted just before that transaction commits. Inserting is strictly serialised
by a lock that lasts until the commit, so indices have no gaps; taking the lock last keeps it short
and keeps it out of every other lock's way.
"""

import json
from typing import Any

from sqlalchemy import event, func, select, text
from sqlalchemy.orm import Session

from app.ledger.tables import LogEntryRow

_LOCK = 0x45585055  # an arbitrary number that names the log's advisory lock
_PENDING = "expunge.log.pending"


def append(session: Session, kind: str, **facts: Any) -> None:  # noqa: ANN401
    """Record one decision when the session's transaction commits.

    ``facts`` hold the service's own ids, counts and digests, never an owner's id.
    """
    body = json.dumps(
        {"kind": kind, **facts}, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    session.info.setdefault(_PENDING, []).append((kind, body))


@event.listens_for(Session, "before_commit")
def _write_pending(session: Session) -> None:
    pending = session.info.pop(_PENDING, [])
    if not pending:
        return
    session.flush()
    session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    first = (session.scalar(select(func.max(LogEntryRow.index))) or 0) + 1
    session.add_all(
        LogEntryRow(index=first + offset, kind=kind, body=body)
        for offset, (kind, body) in enumerate(pending)
    )
    session.flush()


@event.listens_for(Session, "after_soft_rollback")
def _drop_pending(session: Session, _previous: object) -> None:
    session.info.pop(_PENDING, None)
