"""Proofs that several leaves are in one Merkle tree of RFC 6962, with shared hashes sent once.

A proof lists, left to right, the roots of all subtrees that contain none of the leaves. The
verifier walks the same tree, takes these roots from the list and computes the others. For one leaf
this is the inclusion proof in another order.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from app.domain.errors import ProofError
from app.domain.trees.merkle import HASH_BYTES, leaf_hash, node_hash


def sibling_ranges(indices: Collection[int], size: int) -> list[tuple[int, int]]:
    """Return the leaf ranges whose roots are the proof for the leaves at ``indices``."""
    return list(_siblings(sorted(set(indices)), 0, size))


def verify(
    *, leaves: Mapping[int, bytes], size: int, proof: Sequence[bytes], expected_root: bytes
) -> None:
    """Raise ``ProofError`` unless the tree with this root has these contents at these indices."""
    if not leaves or min(leaves) < 0 or max(leaves) >= size:
        raise ProofError("an index lies outside the tree")
    if any(len(hashed) != HASH_BYTES for hashed in proof):
        raise ProofError(f"a hash in the proof does not have {HASH_BYTES} bytes")
    remaining = iter(proof)
    computed = _root(leaves, sorted(leaves), 0, size, remaining)
    if next(remaining, None) is not None:
        raise ProofError("the proof has more hashes than expected")
    if computed != expected_root:
        raise ProofError("the leaves are not in the tree with this root")


def _siblings(indices: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    if not indices:
        if end > start:
            yield start, end
        return
    if end - start > len(indices):  # else each of them is one of the leaves
        split = _split(start, end)
        yield from _siblings([i for i in indices if i < split], start, split)
        yield from _siblings([i for i in indices if i >= split], split, end)


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
            raise ProofError("the proof has fewer hashes than expected")
        return sibling
    if end - start == 1:
        return leaf_hash(leaves[start])
    split = _split(start, end)
    left = _root(leaves, [i for i in indices if i < split], start, split, proof)
    return node_hash(left, _root(leaves, [i for i in indices if i >= split], split, end, proof))


def _split(start: int, end: int) -> int:
    """Return the size of the left subtree, which is complete."""
    return start + (1 << ((end - start - 1).bit_length() - 1))
