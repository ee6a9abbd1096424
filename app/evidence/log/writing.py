"""The append-only log of every decision.

Entries are canonical JSON, written in the transaction of the facts they record. ``append`` collects
them. Just before the commit they get the digests of the rows that were changed (``rows.py``) and
are inserted, the tree is extended and, after ``checkpoint_at_commit``, signed. A lock held until
the commit serialises this, so indices have no gaps; it is taken last, which keeps it short and
prevents deadlocks with all other locks.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any

from sqlalchemy import event, select
from sqlalchemy.orm import Session

from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import actor, checkpoints, merkle, rows
from app.evidence.log.tables import LogEntryRow
from app.runtime.database.queries import known

_MAX_INDEX = 2**63 - 1
_PENDING = "expunge.log.pending"
_SIGNER = "expunge.log.signer"
_EXAMINERS = "expunge.log.examiners"
_OTHERS = "rows.changed"
"""The kind of an entry that holds the digests of rows that no other entry names."""
_FACTS = 2
"""Where an entry's facts begin: after its kind and its actor."""


def append(session: Session, kind: str, **facts: Any) -> None:  # noqa: ANN401
    """Record one decision when the session's transaction commits.

    ``facts`` contain the service's own ids, counts and digests, never an owner's id; the first is
    the id of what the entry is about. The log adds ``by``, the actor, ``recorded_at``, the
    database's time in UTC, and ``rows``, the digests of rows, by name. The last entry before a
    checkpoint is marked as ``signed`` by it. A caller may give ``rows``, too: digests of sets of
    rows, for ``app/operations/fsck_rows.py``.
    """
    if facts.keys() & {"by", "recorded_at", "signed"}:
        raise TypeError("by, recorded_at and signed are set by the log")
    session.info.setdefault(_PENDING, []).append({"kind": kind, "by": actor.current(), **facts})


def checkpoint_at_commit(session: Session, signer: StatementSigner) -> None:
    """Sign the log when the session's transaction commits, including its own entries."""
    session.info[_SIGNER] = signer


def examine_at_commit(session: Session, examine: Callable[[Session], None]) -> None:
    """Call ``examine`` just before the commit, after the entries were written and signed.

    If it raises, the transaction is rolled back.
    """
    session.info.setdefault(_EXAMINERS, []).append(examine)


def entry(session: Session, index: int) -> LogEntryRow:
    """Return an entry; ``NotFoundError`` if the log is shorter."""
    return known(
        session.get(LogEntryRow, index) if 0 <= index <= _MAX_INDEX else None,
        "log entry",
        str(index),
    )


def entries(session: Session, *, start: int, limit: int) -> Sequence[LogEntryRow]:
    """Return at most ``limit`` entries from index ``start`` on, in order."""
    query = select(LogEntryRow).where(LogEntryRow.index >= start)
    return session.scalars(query.order_by(LogEntryRow.index).limit(limit)).all()


def canonical_json(document: dict[str, Any]) -> str:
    """Return an entry's canonical text, which is hashed: sorted keys, no spaces, ASCII."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


@event.listens_for(Session, "before_commit")
def _write_pending(session: Session) -> None:
    session.flush()
    changed = rows.digests(session)
    pending = session.info.pop(_PENDING, [])
    if changed:
        _tell(pending, changed)
    signer = session.info.pop(_SIGNER, None)
    examiners = session.info.pop(_EXAMINERS, [])
    if not pending and signer is None:
        return
    now, frontier = merkle.frontier(session)
    if signer is not None:
        # Mark the last entry as covered by a checkpoint, so that deleting the checkpoint shows.
        if not pending and checkpoints.signed_size(session) < frontier.size:
            pending.append({"kind": "log.signed", "by": actor.current()})
        if pending:
            pending[-1]["signed"] = True
    if pending:
        moment = now.astimezone(UTC).isoformat(timespec="microseconds")
        kinds = [entry["kind"] for entry in pending]
        bodies = [canonical_json({**entry, "recorded_at": moment}) for entry in pending]
        merkle.extend(session, frontier, kinds=kinds, bodies=bodies)
    if signer is not None:
        checkpoints.issue(session, signer, frontier)
    for examine in examiners:
        examine(session)


def _tell(pending: list[dict[str, Any]], changed: Mapping[str, str]) -> None:
    """Put the digest of each row into the first entry about it, or else that names it."""
    about: dict[str, dict[str, Any]] = {}
    for most in (1, None):
        for entry in pending:
            for fact in list(entry.values())[_FACTS:][:most]:
                if isinstance(fact, str):
                    about.setdefault(fact, entry)
    for row, sha256 in changed.items():
        told = about.get(row.partition("/")[2]) or about.get(_OTHERS)
        if told is None:
            told = about[_OTHERS] = {"kind": _OTHERS, "by": actor.current()}
            pending.append(told)
        told["rows"] = {**told.get("rows", {}), row: sha256}


@event.listens_for(Session, "after_soft_rollback")
def _drop_pending(session: Session, _previous: object) -> None:
    session.info.pop(_PENDING, None)
    session.info.pop(_SIGNER, None)
    session.info.pop(_EXAMINERS, None)
