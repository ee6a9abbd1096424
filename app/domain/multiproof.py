"""Proofs that several leaves are in one Merkle tree of RFC 6962, sharing what they have in common.

A proof lists the roots of all subtrees that hold none of the leaves, left to right. The verifier
walks the same tree: it takes a root from the list where a subtree holds no leaf of its own, and
computes the others. For one leaf this is the inclusion proof in another order.
"""

from collections.abc import Iterator, Mapping, Sequence

from app.domain.errors import ProofError
from app.domain.merkle import HASH_BYTES, leaf_hash, node_hash, root


def prove(leaves: Sequence[bytes], indices: Sequence[int]) -> list[bytes]:
    """Return the proof for the leaves at ``indices``, given the contents of all leaves."""
    return list(_siblings(leaves, sorted(set(indices)), 0, len(leaves)))


def verify(
    *, leaves: Mapping[int, bytes], size: int, proof: Sequence[bytes], expected_root: bytes
) -> None:
    """Check that a tree of ``size`` leaves with this root holds these contents at these indices.

    Raises:
        ProofError: it does not, or the proof does not show it.
    """
    if not leaves or min(leaves) < 0 or max(leaves) >= size:
        raise ProofError("an index lies outside of the tree")
    if any(len(hashed) != HASH_BYTES for hashed in proof):
        raise ProofError(f"a hash in the proof is not of {HASH_BYTES} bytes")
    remaining = iter(proof)
    computed = _root(leaves, sorted(leaves), 0, size, remaining)
    if next(remaining, None) is not None:
        raise ProofError("the proof has more hashes than are due")
    if computed != expected_root:
        raise ProofError("the leaves are not in the tree with this root")


def _siblings(
    leaves: Sequence[bytes], indices: Sequence[int], start: int, end: int
) -> Iterator[bytes]:
    if not indices:
        if end > start:
            yield root(leaves[start:end])
        return
    if end - start > 1:
        split = _split(start, end)
        yield from _siblings(leaves, [i for i in indices if i < split], start, split)
        yield from _siblings(leaves, [i for i in indices if i >= split], split, end)


def _root(
    leaves: Mapping[int, bytes],
    indices: Sequence[int],
    start: int,
    end: int,
    proof: Iterator[bytes],
) -> bytes:
    if not indices:
        sibling = next(proof, None)
        if sibling is None:
            raise ProofError("the proof has fewer hashes than are due")
        return sibling
    if end - start == 1:
        return leaf_hash(leaves[start])
    split = _split(start, end)
    left = _root(leaves, [i for i in indices if i < split], start, split, proof)
    return node_hash(left, _root(leaves, [i for i in indices if i >= split], split, end, proof))


def _split(start: int, end: int) -> int:
    """Return where the larger left subtree ends: it is full."""
    return start + (1 << ((end - start - 1).bit_length() - 1))
