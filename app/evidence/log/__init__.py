"""The transparency log: an append-only Merkle log of every decision of the service.

Everything raises ``CorruptLogError`` where a node is missing, ``NotReadyError`` while there is
nothing to show, and ``InvalidInputError`` for sizes and indices that the log does not have.
"""

from app.evidence.log.writing import (
    append,
    canonical_json,
    changed,
    checkpoint_at_commit,
    entries,
    entry,
    examine_at_commit,
)

__all__ = [
    "append",
    "canonical_json",
    "changed",
    "checkpoint_at_commit",
    "entries",
    "entry",
    "examine_at_commit",
]
