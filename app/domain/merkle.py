"""Merkle trees of RFC 6962 and their proofs: SHA-256, with domain-separated leaves and nodes.

Leaves count from 0. A complete subtree of 2^level leaves has coordinates (level, position): it
starts at leaf position * 2^level. Leaves are level 0. Nothing here does I/O, and proofs are checked
with the standard library alone.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.errors import ProofError

HASH_BYTES = hashlib.sha256().digest_size
EMPTY_ROOT = hashlib.sha256(b"").digest()

Coordinates = tuple[int, int]
"""(level, position) of a complete subtree."""


def leaf_hash(content: bytes) -> bytes:
    """Return the hash of one leaf."""
    return hashlib.sha256(b"\x00" + content).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True)
class NodeRun:
    """Adjacent nodes of one level, the first of them at ``position``."""

    level: int
    position: int
    hashes: Sequence[bytes]


@dataclass
class Frontier:
    """What a tree needs to keep in order to grow: the roots of its largest complete subtrees.

    Attributes:
        size: the number of leaves.
        open: by level, the root of the complete subtree that still lacks its right sibling.
    """

    size: int = 0
    open: dict[int, bytes] = field(default_factory=dict)

    def extend(self, leaf_hashes: Sequence[bytes]) -> list[NodeRun]:
        """Add leaves; return the inner nodes that they complete, level by level."""
        completed = []
        level, position, hashes = 0, self.size, list(leaf_hashes)
        while hashes:
            if position % 2:
                hashes = [self.open.pop(level), *hashes]
                position -= 1
            if len(hashes) % 2:
                self.open[level] = hashes[-1]
            level, position = level + 1, position // 2
            # With an odd number of hashes, the last one has no sibling yet.
            hashes = [
                node_hash(left, right)
                for left, right in zip(hashes[::2], hashes[1::2], strict=False)
            ]
            if hashes:
                completed.append(NodeRun(level, position, hashes))
        self.size += len(leaf_hashes)
        return completed

    def root(self) -> bytes:
        """Return the root of the tree."""
        return _fold([self.open[level] for level in sorted(self.open, reverse=True)])


def complete_subtrees(start: int, end: int) -> list[Coordinates]:
    """Split the leaves [start, end) into the largest complete subtrees, left to right.

    ``start`` must be a multiple of the largest power of two that fits, which holds for every range
    in a proof.
    """
    found = []
    while start < end:
        level = (end - start).bit_length() - 1
        found.append((level, start >> level))
        start += 1 << level
    return found


def inclusion_ranges(index: int, size: int) -> list[tuple[int, int]]:
    """Return the ranges that prove leaf ``index``, from the leaf upwards (RFC 6962, 2.1.1)."""
    start, end, ranges = 0, size, []
    while end - start > 1:
        split = start + _largest_power_below(end - start)
        if index < split:
            ranges.append((split, end))
            end = split
        else:
            ranges.append((start, split))
            start = split
    return ranges[::-1]


def consistency_ranges(old_size: int, new_size: int) -> list[tuple[int, int]]:
    """Return the ranges that prove one tree begins with another (RFC 6962, section 2.1.2)."""
    if old_size == new_size:
        return []
    start, end, ranges = 0, new_size, []
    while old_size != end:
        split = start + _largest_power_below(end - start)
        if old_size <= split:
            ranges.append((split, end))
            end = split
        else:
            ranges.append((start, split))
            start = split
    # The verifier knows the root of the old tree, but no other part of it.
    if start:
        ranges.append((start, end))
    return ranges[::-1]


def range_root(start: int, end: int, hashes: Mapping[Coordinates, bytes]) -> bytes:
    """Return the root of the leaves [start, end), given the roots of its complete subtrees."""
    return _fold([hashes[coordinates] for coordinates in complete_subtrees(start, end)])


def verify_inclusion(
    *, leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> None:
    """Raise ``ProofError`` unless the leaf of this hash has number ``index`` in the tree."""
    if not 0 <= index < size:
        raise ProofError("the index lies outside the tree")
    ranges = inclusion_ranges(index, size)
    _check_shape(proof, len(ranges))
    known = dict(zip(ranges, proof, strict=True)) | {(index, index + 1): leaf}
    if _root_of(known, 0, size) != root:
        raise ProofError("the entry is not in the tree with this root")


def verify_consistency(
    *, old_size: int, old_root: bytes, new_size: int, new_root: bytes, proof: Sequence[bytes]
) -> None:
    """Raise ``ProofError`` unless the new tree begins with all of the old (RFC 9162, 2.1.4.2)."""
    if not 0 <= old_size <= new_size:
        raise ProofError("the older tree is larger than the newer one")
    if old_size == 0:
        _check_shape(proof, 0)
        if old_root != EMPTY_ROOT:
            raise ProofError("this is not the root of an empty tree")
        return
    ranges = consistency_ranges(old_size, new_size)
    _check_shape(proof, len(ranges))
    known = dict(zip(ranges, proof, strict=True))
    if old_size == new_size or old_size.bit_count() == 1:
        known[0, old_size] = old_root  # the old tree is a subtree of the new one
    if (_root_of(known, 0, old_size), _root_of(known, 0, new_size)) != (old_root, new_root):
        raise ProofError("the newer tree does not begin with the older one")


def _root_of(known: Mapping[tuple[int, int], bytes], start: int, end: int) -> bytes:
    """Return the root of the leaves [start, end), given those of the ranges that it consists of."""
    if (start, end) in known:
        return known[start, end]
    split = start + _largest_power_below(end - start)
    return node_hash(_root_of(known, start, split), _root_of(known, split, end))


def _check_shape(proof: Sequence[bytes], length: int) -> None:
    if len(proof) != length:
        raise ProofError(f"the proof has {len(proof)} hashes; {length} are expected")
    if any(len(hashed) != HASH_BYTES for hashed in proof):
        raise ProofError(f"a hash in the proof does not have {HASH_BYTES} bytes")


def _largest_power_below(count: int) -> int:
    """Return the largest power of two smaller than ``count`` (at least 2)."""
    return 1 << ((count - 1).bit_length() - 1)


def _fold(roots: Sequence[bytes]) -> bytes:
    """Return the root over adjacent subtrees, smaller ones to the right."""
    if not roots:
        return EMPTY_ROOT
    hashed = roots[-1]
    for left in reversed(roots[:-1]):
        hashed = node_hash(left, hashed)
    return hashed


def sibling_ranges(indices: Collection[int], size: int) -> list[tuple[int, int]]:
    """Return the leaf ranges whose roots are the proof for the leaves at ``indices``."""
    return list(_siblings(sorted(set(indices)), 0, size))


def verify_leaves(
    *, leaves: Mapping[int, bytes], size: int, proof: Sequence[bytes], expected_root: bytes
) -> None:
    """Raise ``ProofError`` unless the tree with this root has these contents at these indices.

    A proof for several leaves lists, left to right, the roots of all subtrees that contain none of
    them, so shared hashes are sent once. For one leaf this is the inclusion proof in another order.
    """
    if not leaves or min(leaves) < 0 or max(leaves) >= size:
        raise ProofError("an index lies outside the tree")
    if any(len(hashed) != HASH_BYTES for hashed in proof):
        raise ProofError(f"a hash in the proof does not have {HASH_BYTES} bytes")
    remaining = iter(proof)
    computed = _root_from(leaves, sorted(leaves), 0, size, remaining)
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
        split = start + _largest_power_below(end - start)
        yield from _siblings([i for i in indices if i < split], start, split)
        yield from _siblings([i for i in indices if i >= split], split, end)


def _root_from(
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
    split = start + _largest_power_below(end - start)
    left = _root_from(leaves, [i for i in indices if i < split], start, split, proof)
    right = _root_from(leaves, [i for i in indices if i >= split], split, end, proof)
    return node_hash(left, right)
