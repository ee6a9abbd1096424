"""The append-only log of every decision.

Entries are canonical JSON, written in the transaction of the facts they record. ``append`` collects
them. Just before the commit they are inserted, the tree is extended and, after
``checkpoint_at_commit``, signed. A lock held until the commit serialises this, so indices have no
gaps; it is taken last, which keeps it short and prevents deadlocks with all other locks.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any

from sqlalchemy import event, select
from sqlalchemy.orm import Session

from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import actor, checkpoints, merkle
from app.evidence.log.tables import LogEntryRow
from app.runtime.database.queries import known

_MAX_INDEX = 2**63 - 1
_PENDING = "expunge.log.pending"
_SIGNER = "expunge.log.signer"
_EXAMINERS = "expunge.log.examiners"


def append(session: Session, kind: str, **facts: Any) -> None:  # noqa: ANN401
    """Record one decision when the session's transaction commits.

    ``facts`` contain the service's own ids, counts and digests, never an owner's id. The log adds
    ``by``, the actor, and ``recorded_at``, the database's time in UTC. The last entry before a
    checkpoint is marked as ``signed`` by it.
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


def digest_of(document: Any) -> str:  # noqa: ANN401 - any JSON
    """Digest plain JSON values; numbers count by value, not by how PostgreSQL writes them."""
    return hashlib.sha256(canonical_json({"of": plain(document)}).encode()).hexdigest()


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON values with every number a float: to JSONB, 1e22 and 10^22 are the same."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return float(value) + 0.0  # JSONB has no negative zero
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


@event.listens_for(Session, "before_commit")
def _write_pending(session: Session) -> None:
    pending = session.info.pop(_PENDING, [])
    signer = session.info.pop(_SIGNER, None)
    examiners = session.info.pop(_EXAMINERS, [])
    if not pending and signer is None:
        return
    now, frontier = merkle.frontier(session)
    if signer is not None:
        _announce(session, pending, frontier.size)
    if pending:
        moment = now.astimezone(UTC).isoformat(timespec="microseconds")
        kinds = [entry["kind"] for entry in pending]
        bodies = [canonical_json({**entry, "recorded_at": moment}) for entry in pending]
        merkle.extend(session, frontier, kinds=kinds, bodies=bodies)
    if signer is not None:
        checkpoints.issue(session, signer, frontier)
    for examine in examiners:
        examine(session)


def _announce(session: Session, pending: list[dict[str, Any]], size: int) -> None:
    """Mark the last entry as covered by a checkpoint, so that deleting the checkpoint shows."""
    if not pending and checkpoints.signed_size(session) < size:
        pending.append({"kind": "log.signed", "by": actor.current()})
    if pending:
        pending[-1]["signed"] = True


@event.listens_for(Session, "after_soft_rollback")
def _drop_pending(session: Session, _previous: object) -> None:
    session.info.pop(_PENDING, None)
    session.info.pop(_SIGNER, None)
    session.info.pop(_EXAMINERS, None)
