"""Proofs about several leaves at once, against the tree's own definition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.errors import ProofError
from app.domain.trees import multiproof
from tests.support import trees

LEAVES = [bytes([number]) * 32 for number in range(40)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    size = draw(st.integers(1, 40))
    indices = draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True))
    return LEAVES[:size], sorted(indices)


def check(leaves: list[bytes], indices: list[int], proof: list[bytes], size: int) -> None:
    multiproof.verify(
        leaves={index: leaves[index] for index in indices},
        size=size,
        proof=proof,
        expected_root=trees.root(leaves),
    )


def prove(leaves: list[bytes], indices: list[int]) -> list[bytes]:
    ranges = multiproof.sibling_ranges(indices, len(leaves))
    return [trees.root(leaves[start:end]) for start, end in ranges]


@given(cases())
@settings(max_examples=300, deadline=None)
def test_the_ranges_are_those_of_the_definition(case: tuple) -> None:
    assert prove(*case) == trees.multiproof(*case)


@given(cases())
@settings(max_examples=300, deadline=None)
def test_a_proof_holds_and_is_no_longer_than_single_ones(case: tuple) -> None:
    leaves, indices = case
    proof = prove(leaves, indices)
    check(leaves, indices, proof, len(leaves))
    assert len(proof) <= sum(len(trees.path(index, leaves)) for index in indices)
    if len(indices) == 1:
        assert sorted(proof) == sorted(trees.path(indices[0], leaves))
    if len(indices) == len(leaves):
        assert proof == []


@given(cases(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_changed_proof_fails(case: tuple, data: st.DataObject) -> None:
    leaves, indices = case
    proof = prove(leaves, indices)
    at = data.draw(st.integers(0, len(proof)))
    changed = data.draw(
        st.sampled_from(
            [
                [*proof[:at], b"\xff" * 32, *proof[at:]],
                [*proof[:at], *proof[at + 1 :]],
                [*proof[:at], b"\xff" * 32, *proof[at + 1 :]],
                [*proof[:at], b"short", *proof[at + 1 :]],
            ]
        )
    )
    if changed != proof:
        with pytest.raises(ProofError):
            check(leaves, indices, changed, len(leaves))


@given(cases(), st.data())
@settings(max_examples=200, deadline=None)
def test_another_leaf_or_place_fails(case: tuple, data: st.DataObject) -> None:
    leaves, indices = case
    proof = prove(leaves, indices)
    root = trees.root(leaves)
    own = {index: leaves[index] for index in indices}
    one = data.draw(st.sampled_from(indices))
    with pytest.raises(ProofError):
        multiproof.verify(
            leaves=own | {one: b"\xee" * 32}, size=len(leaves), proof=proof, expected_root=root
        )
    moved = data.draw(st.integers(0, len(leaves)))
    if moved not in own:
        others = {index: leaf for index, leaf in own.items() if index != one}
        with pytest.raises(ProofError):
            multiproof.verify(
                leaves=others | {moved: own[one]},
                size=len(leaves),
                proof=proof,
                expected_root=root,
            )


@pytest.mark.parametrize("leaves", [{}, {-1: b""}, {40: b""}])
def test_indices_outside_of_the_tree_are_refused(leaves: dict) -> None:
    with pytest.raises(ProofError, match="outside"):
        multiproof.verify(leaves=leaves, size=40, proof=[], expected_root=b"")


def test_a_vast_size_ends_at_once() -> None:
    with pytest.raises(ProofError):
        multiproof.verify(leaves={5: b"x"}, size=2**63 - 1, proof=[], expected_root=b"")


def test_adjacent_leaves_need_few_ranges_however_many_there_are() -> None:
    for size in (10**3, 10**6, 10**9):
        ranges = multiproof.sibling_ranges(range(size // 3, size // 3 + 200), size)
        assert len(ranges) <= 2 * size.bit_length()
