"""Merkle tree hashes of RFC 6962, section 2.1: SHA-256, leaves and nodes apart by a prefix."""

import hashlib
from collections.abc import Sequence

EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(content: bytes) -> bytes:
    """Return the hash of one leaf."""
    return hashlib.sha256(b"\x00" + content).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over the contents ``leaves`` in their order."""
    level = [leaf_hash(leaf) for leaf in leaves]
    if not level:
        return EMPTY_ROOT
    # Pairing neighbours and carrying an odd last one up gives the tree of RFC 6962.
    while len(level) > 1:
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = paired + level[len(paired) * 2 :]
    return level[0]
