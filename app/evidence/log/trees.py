"""The Merkle trees that are kept in Postgres: the log's, and two for each lineage of a model.

Only the roots of complete subtrees are stored; they never change. Any other root is computed from
at most 2 log n of them, and the log grows in O(log n) rows. A tree is named by a text. The log's
leaves are its entries, hashed where they are read; the leaves of all other trees are stored as
subtrees of level 0.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    LargeBinary,
    SmallInteger,
    String,
    bindparam,
    func,
    select,
    text,
)
from sqlalchemy.orm import Session

from app.domain import merkle
from app.domain.errors import CorruptLogError, InvalidInputError
from app.domain.merkle import Frontier, NodeRun
from app.evidence.log.tables import LogEntryRow

LOG: Final = "log"
Place = tuple[str, int, int]
"""(tree, level, position) of a complete subtree."""

_PLACES: Final = (
    bindparam("trees", type_=ARRAY(String)),
    bindparam("levels", type_=ARRAY(SmallInteger)),
    bindparam("positions", type_=ARRAY(BigInteger)),
)
# Leaf hashes are computed here, like merkle.leaf_hash, so that one query reads the entries once.
_SUBTREES = text(
    """
    SELECT 'log', 0, index, sha256('\\x00'::bytea || convert_to(body, 'UTF8'))
    FROM log_entries WHERE index = ANY(:leaves)
    UNION ALL
    SELECT node.tree, node.level, node.position, node.hash
    FROM unnest(:trees, :levels, :positions) AS wanted (tree, level, position)
    CROSS JOIN LATERAL (
        SELECT tree, level, position, hash FROM tree_nodes
        WHERE tree = wanted.tree AND level = wanted.level AND position = wanted.position
    ) AS node
    """
).bindparams(bindparam("leaves", type_=ARRAY(BigInteger)), *_PLACES)
_NODES: Final = (*_PLACES, bindparam("hashes", type_=ARRAY(LargeBinary)))
_INSERT_NODES: Final = """
    INSERT INTO tree_nodes (tree, level, position, hash)
    SELECT * FROM unnest(:trees, :levels, :positions, :hashes)
"""
_ADD = text(_INSERT_NODES).bindparams(*_NODES)
# One statement however many entries there are: it is prepared, and the lock is held.
_EXTEND = text(
    f"""
    WITH entered AS (
        INSERT INTO log_entries (index, kind, body)
        SELECT :first + place - 1, kind, body
        FROM unnest(:kinds, :bodies) WITH ORDINALITY AS entry (kind, body, place)
    )
    {_INSERT_NODES}
    """  # noqa: S608 - of constants
).bindparams(
    bindparam("first", type_=BigInteger),
    bindparam("kinds", type_=ARRAY(String)),
    bindparam("bodies", type_=ARRAY(String)),
    *_NODES,
)


def add(session: Session, grown: Iterable[tuple[str, NodeRun]]) -> None:
    """Insert nodes, each run with its tree. The caller holds the tree's lock."""
    nodes = _columns(grown)
    if nodes["trees"]:
        session.execute(_ADD, nodes)


def _columns(grown: Iterable[tuple[str, NodeRun]]) -> dict[str, list[Any]]:
    rows = [
        (tree, run.level, run.position + i, digest)
        for tree, run in grown
        for i, digest in enumerate(run.hashes)
    ]
    names = ("trees", "levels", "positions", "hashes")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def read(session: Session, wanted: Collection[Place]) -> dict[Place, bytes]:
    """Return the roots of complete subtrees."""
    if not wanted:
        return {}
    nodes = [place for place in wanted if place[0] != LOG or place[1] > 0]
    rows = session.execute(
        _SUBTREES,
        {
            "leaves": [at for tree, level, at in wanted if tree == LOG and level == 0],
            "trees": [tree for tree, _, _ in nodes],
            "levels": [level for _, level, _ in nodes],
            "positions": [at for _, _, at in nodes],
        },
    )
    found = {(tree, level, at): bytes(digest) for tree, level, at, digest in rows}
    if len(found) != len(set(wanted)):
        raise missing()
    return found


def missing() -> CorruptLogError:
    """Return the error for a tree that lacks a node."""
    return CorruptLogError("a node of the log or of a lineage is missing; run 'expunge log fsck'")


def frontiers(session: Session, sizes: Mapping[str, int]) -> dict[str, Frontier]:
    """Return the frontiers of trees of the given sizes."""
    places = {tree: merkle.complete_subtrees(0, size) for tree, size in sizes.items()}
    hashes = read(session, [(tree, *place) for tree, each in places.items() for place in each])
    return {
        tree: Frontier(sizes[tree], {level: hashes[tree, level, at] for level, at in each})
        for tree, each in places.items()
    }


def range_roots(session: Session, tree: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the roots over ranges of a tree's leaves, as proofs have them."""
    wanted = [place for start, end in ranges for place in merkle.complete_subtrees(start, end)]
    found = read(session, [(tree, *place) for place in wanted])
    hashes = {(level, at): digest for (_, level, at), digest in found.items()}
    return [merkle.range_root(start, end, hashes) for start, end in ranges]


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
        raise missing()
    return now, Frontier(size, waiting)


def extend(
    session: Session, frontier: Frontier, *, kinds: Sequence[str], bodies: Sequence[str]
) -> None:
    """Insert entries and the nodes that they complete. The caller holds the log's lock."""
    entries = {"first": frontier.size, "kinds": list(kinds), "bodies": list(bodies)}
    runs = frontier.extend([merkle.leaf_hash(body.encode()) for body in bodies])
    session.execute(_EXTEND, entries | _columns((LOG, run) for run in runs))


def root(session: Session, size: int) -> bytes:
    """Return the root of the tree over the first ``size`` entries."""
    _require_size("size", size, session)
    (digest,) = range_roots(session, LOG, [(0, size)])
    return digest


def inclusion_proof(session: Session, *, index: int, size: int) -> list[bytes]:
    """Prove that entry ``index`` is among the first ``size`` (RFC 6962, section 2.1.1)."""
    _require_size("size", size, session)
    if not 0 <= index < size:
        raise InvalidInputError(f"index: must be from 0 to {size - 1}, below the tree's size")
    return range_roots(session, LOG, merkle.inclusion_ranges(index, size))


def consistency_proof(session: Session, *, old_size: int, new_size: int) -> list[bytes]:
    """Prove that the first ``new_size`` entries begin with the first ``old_size``.

    RFC 6962, section 2.1.2; the proof from an empty tree is empty.
    """
    _require_size("to", new_size, session)
    if not 0 <= old_size <= new_size:
        raise InvalidInputError(f"from: must be from 0 to {new_size}, the newer tree's size")
    if old_size == 0:
        return []
    return range_roots(session, LOG, merkle.consistency_ranges(old_size, new_size))


def _require_size(field: str, asked: int, session: Session) -> None:
    present = size(session)
    if not 0 <= asked <= present:
        raise InvalidInputError(f"{field}: must be from 0 to {present}, the log's size")
