"""The Merkle trees that are kept in Postgres: the log's, and two for each lineage of a model.

Only the roots of complete subtrees are stored; they never change. Any other root is computed from
at most 2 log n of them. A tree is named by a text. The log's leaves are its entries, hashed where
they are read; the leaves of all other trees are stored as subtrees of level 0.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import ARRAY, BigInteger, LargeBinary, SmallInteger, String, bindparam, text
from sqlalchemy.orm import Session

from app.domain import merkle
from app.domain.errors import CorruptLogError
from app.domain.merkle import Frontier, NodeRun

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
_ADD = text(
    """
    INSERT INTO tree_nodes (tree, level, position, hash)
    SELECT * FROM unnest(:trees, :levels, :positions, :hashes)
    """
).bindparams(*_PLACES, bindparam("hashes", type_=ARRAY(LargeBinary)))


def add(session: Session, grown: Iterable[tuple[str, NodeRun]]) -> None:
    """Insert nodes, each run with its tree. The caller holds the tree's lock."""
    rows = [
        (tree, run.level, run.position + i, digest)
        for tree, run in grown
        for i, digest in enumerate(run.hashes)
    ]
    if rows:
        names = ("trees", "levels", "positions", "hashes")
        session.execute(_ADD, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


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
