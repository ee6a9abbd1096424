"""The log's Merkle tree in Postgres: appending and proving in O(log n) rows; see ``nodes``."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, insert, select, text
from sqlalchemy.orm import Session

from app.domain import merkle
from app.domain.errors import InvalidInputError
from app.domain.merkle import Frontier
from app.evidence.log import nodes
from app.evidence.log.tables import LogEntryRow

# One statement, because the lock is held: the clock, the log's size, and the complete subtrees that
# wait for their neighbours: one of 2^k leaves for each bit k that is set in the size.
_EDGE = text(
    """
    SELECT clock_timestamp(), log.size, waiting.level, waiting.hash
    FROM (SELECT coalesce(max(index) + 1, 0) AS size FROM log_entries) AS log
    LEFT JOIN LATERAL (
        SELECT 0 AS level, sha256('\\x00'::bytea || convert_to(body, 'UTF8')) AS hash
        FROM log_entries WHERE log.size % 2 = 1 AND index = log.size - 1
        UNION ALL
        SELECT height, node.hash
        FROM generate_series(1, 62) AS height
        CROSS JOIN LATERAL (
            SELECT hash FROM tree_nodes
            WHERE tree = 'log' AND level = height AND position = (log.size >> height) - 1
        ) AS node
        WHERE (log.size >> height) % 2 = 1
    ) AS waiting ON true
    """
)
_LOCK_NUMBER = 0x45585055  # an arbitrary number that names the log


def size(session: Session) -> int:
    """Return how many entries the log has."""
    last = session.scalar(select(func.max(LogEntryRow.index)))
    return 0 if last is None else last + 1


def frontier(session: Session) -> tuple[datetime, Frontier]:
    """Lock the log until the transaction ends; return the time and the tree's frontier."""
    session.flush()
    session.execute(select(func.pg_advisory_xact_lock(_LOCK_NUMBER)))
    edge = session.execute(_EDGE).all()
    now, size, _, _ = edge[0]
    waiting = {level: digest for _, _, level, digest in edge if digest is not None}
    if len(waiting) != size.bit_count():
        raise nodes.missing()
    return now, Frontier(size, waiting)


def extend(
    session: Session, frontier: Frontier, *, kinds: Sequence[str], bodies: Sequence[str]
) -> None:
    """Insert entries and the nodes that they complete. The caller holds the log's lock."""
    first = frontier.size
    runs = frontier.extend([merkle.leaf_hash(body.encode()) for body in bodies])
    entries = [
        {"index": first + i, "kind": kind, "body": body}
        for i, (kind, body) in enumerate(zip(kinds, bodies, strict=True))
    ]
    session.execute(insert(LogEntryRow), entries)
    nodes.add(session, [(nodes.LOG, run) for run in runs])


def root(session: Session, size: int) -> bytes:
    """Return the root of the tree over the first ``size`` entries."""
    _require_size("size", size, session)
    (digest,) = nodes.range_roots(session, nodes.LOG, [(0, size)])
    return digest


def inclusion_proof(session: Session, *, index: int, size: int) -> list[bytes]:
    """Prove that entry ``index`` is among the first ``size`` (RFC 6962, section 2.1.1)."""
    _require_size("size", size, session)
    if not 0 <= index < size:
        raise InvalidInputError(f"index: must be from 0 to {size - 1}, below the tree's size")
    return nodes.range_roots(session, nodes.LOG, merkle.inclusion_ranges(index, size))


def consistency_proof(session: Session, *, old_size: int, new_size: int) -> list[bytes]:
    """Prove that the first ``new_size`` entries begin with the first ``old_size``.

    RFC 6962, section 2.1.2; the proof from an empty tree is empty.
    """
    _require_size("to", new_size, session)
    if not 0 <= old_size <= new_size:
        raise InvalidInputError(f"from: must be from 0 to {new_size}, the newer tree's size")
    if old_size == 0:
        return []
    return nodes.range_roots(session, nodes.LOG, merkle.consistency_ranges(old_size, new_size))


def _require_size(field: str, asked: int, session: Session) -> None:
    present = size(session)
    if not 0 <= asked <= present:
        raise InvalidInputError(f"{field}: must be from 0 to {present}, the log's size")
