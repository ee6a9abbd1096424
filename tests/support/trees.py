"""RFC 6962, section 2.1, word for word: trees and proofs by their recursive definition."""

import hashlib


def leaf(content: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + content).digest()


def root(leaves: list[bytes]) -> bytes:
    """MTH(D)."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaf(leaves[0])
    k = _split(len(leaves))
    return hashlib.sha256(b"\x01" + root(leaves[:k]) + root(leaves[k:])).digest()


def path(m: int, leaves: list[bytes]) -> list[bytes]:
    """PATH(m, D)."""
    if len(leaves) == 1:
        return []
    k = _split(len(leaves))
    if m < k:
        return [*path(m, leaves[:k]), root(leaves[k:])]
    return [*path(m - k, leaves[k:]), root(leaves[:k])]


def proof(m: int, leaves: list[bytes]) -> list[bytes]:
    """PROOF(m, D)."""
    return _subproof(m, leaves, complete=True)


def _subproof(m: int, leaves: list[bytes], *, complete: bool) -> list[bytes]:
    if m == len(leaves):
        return [] if complete else [root(leaves)]
    k = _split(len(leaves))
    if m <= k:
        return [*_subproof(m, leaves[:k], complete=complete), root(leaves[k:])]
    return [*_subproof(m - k, leaves[k:], complete=False), root(leaves[:k])]


def _split(n: int) -> int:
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def multiproof(leaves: list[bytes], indices: list[int]) -> list[bytes]:
    """Return the roots of the largest subtrees without any of these leaves, left to right."""
    if not indices:
        return [root(leaves)]
    if len(leaves) == 1:
        return []
    k = _split(len(leaves))
    return [
        *multiproof(leaves[:k], [i for i in indices if i < k]),
        *multiproof(leaves[k:], [i - k for i in indices if i >= k]),
    ]
