"""RFC 6962 trees, and proofs of one leaf and of several, against its definition and pymerkle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymerkle import InmemoryTree

from app.domain import merkle
from app.domain.errors import ProofError
from tests.support import trees

SIZES = range(131)
_FORGED = st.binary(min_size=32, max_size=32)
LEAVES = [b"entry %d" % number for number in range(SIZES.stop)]


@pytest.fixture(scope="module")
def hashes() -> dict[merkle.Coordinates, bytes]:
    """The root of every complete subtree."""
    frontier = merkle.Frontier()
    leaf_hashes = [merkle.leaf_hash(leaf) for leaf in LEAVES[: SIZES[-1]]]
    runs = [merkle.NodeRun(0, 0, leaf_hashes), *frontier.extend(leaf_hashes)]
    return {
        (run.level, run.position + offset): hashed
        for run in runs
        for offset, hashed in enumerate(run.hashes)
    }


def _root(leaves):
    frontier = merkle.Frontier()
    frontier.extend([merkle.leaf_hash(leaf) for leaf in leaves])
    return frontier.root()


def _inclusion(hashes, index, size):
    return [merkle.range_root(*r, hashes) for r in merkle.inclusion_ranges(index, size)]


def _consistency(hashes, old, new):
    return [merkle.range_root(*r, hashes) for r in merkle.consistency_ranges(old, new)]


@given(st.lists(st.binary(max_size=8), max_size=40))
def test_the_root_is_that_of_the_definition(leaves: list[bytes]) -> None:
    assert _root(leaves) == trees.root(leaves)


def test_known_root() -> None:
    # From the test vectors of Certificate Transparency's reference implementation.
    leaves = [bytes.fromhex(leaf) for leaf in ("", "00", "10", "2021", "3031", "40414243")]
    assert _root(leaves).hex() == (
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef"
    )


def test_roots_are_those_of_pymerkle() -> None:
    theirs = InmemoryTree(algorithm="sha256")
    ours = merkle.Frontier()
    for size in SIZES[1:]:
        theirs.append_entry(LEAVES[size - 1])
        ours.extend([merkle.leaf_hash(LEAVES[size - 1])])
        assert ours.root() == theirs.get_root()


@given(st.lists(st.integers(0, 40), max_size=12))
def test_a_tree_grows_the_same_in_steps_of_any_size(steps: list[int]) -> None:
    leaf_hashes = [merkle.leaf_hash(b"%d" % number) for number in range(sum(steps))]
    in_steps, at_once = merkle.Frontier(), merkle.Frontier()
    found = {}
    for step in steps:
        for run in in_steps.extend(leaf_hashes[in_steps.size : in_steps.size + step]):
            for offset, hashed in enumerate(run.hashes):
                assert (run.level, run.position + offset) not in found
                found[run.level, run.position + offset] = hashed
    runs = at_once.extend(leaf_hashes)
    assert in_steps == at_once
    assert found == {
        (run.level, run.position + offset): hashed
        for run in runs
        for offset, hashed in enumerate(run.hashes)
    }


def test_inclusion_proofs_are_those_of_the_definition_for_every_size_and_index(hashes) -> None:
    for size in SIZES[1:]:
        root = merkle.range_root(0, size, hashes)
        for index in range(size):
            proof = _inclusion(hashes, index, size)
            merkle.verify_inclusion(
                leaf=hashes[0, index], index=index, size=size, proof=proof, root=root
            )
            if size in (1, 2, 7, 64, 100, 127, 130) or index in (0, size // 3, size - 1):
                assert proof == trees.path(index, LEAVES[:size])


def test_consistency_proofs_are_those_of_the_definition_for_every_pair_of_sizes(hashes) -> None:
    roots = [merkle.range_root(0, size, hashes) for size in SIZES]
    for new in SIZES[1:]:
        for old in range(1, new + 1):
            proof = _consistency(hashes, old, new)
            merkle.verify_consistency(
                old_size=old, old_root=roots[old], new_size=new, new_root=roots[new], proof=proof
            )
            if new in (1, 2, 7, 64, 100, 127, 130) or old in (1, new // 3 or 1, new):
                assert proof == trees.proof(old, LEAVES[:new])


def test_every_tree_begins_with_the_empty_one(hashes) -> None:
    root = merkle.range_root(0, 5, hashes)
    merkle.verify_consistency(
        old_size=0, old_root=merkle.EMPTY_ROOT, new_size=5, new_root=root, proof=[]
    )
    with pytest.raises(ProofError):
        merkle.verify_consistency(old_size=0, old_root=root, new_size=5, new_root=root, proof=[])


@given(st.data())
def test_an_inclusion_proof_shows_nothing_else(hashes, data) -> None:
    size = data.draw(st.integers(1, SIZES[-1]))
    index = data.draw(st.integers(0, size - 1))
    facts = {
        "leaf": hashes[0, index],
        "index": index,
        "size": size,
        "proof": _inclusion(hashes, index, size),
        "root": merkle.range_root(0, size, hashes),
    }
    wrong = data.draw(
        st.one_of(
            st.fixed_dictionaries({"leaf": _FORGED}),
            st.fixed_dictionaries({"index": st.integers(-2, 310)}),
            st.fixed_dictionaries({"proof": _mutated(facts["proof"])}),
            st.fixed_dictionaries({"root": _FORGED}),
        )
    )
    if facts | wrong == facts:
        merkle.verify_inclusion(**facts)
        return
    with pytest.raises(ProofError):
        merkle.verify_inclusion(**facts | wrong)


@pytest.mark.parametrize("claimed", [1, 2, 16, 300])
def test_a_proof_is_for_a_tree_of_its_size(hashes, claimed: int) -> None:
    proof, root = _inclusion(hashes, 0, 8), merkle.range_root(0, 8, hashes)
    with pytest.raises(ProofError, match="are expected"):
        merkle.verify_inclusion(leaf=hashes[0, 0], index=0, size=claimed, proof=proof, root=root)
    proof, old_root = _consistency(hashes, 4, 8), merkle.range_root(0, 4, hashes)
    for old_size, new_size in ((4, 8 * claimed + 8), (claimed, 8 + 2 * claimed)):
        with pytest.raises(ProofError):
            merkle.verify_consistency(
                old_size=old_size, old_root=old_root, new_size=new_size, new_root=root, proof=proof
            )


@given(st.data())
def test_a_consistency_proof_shows_nothing_else(hashes, data) -> None:
    new = data.draw(st.integers(1, SIZES[-1]))
    old = data.draw(st.integers(1, new))
    facts = {
        "old_size": old,
        "old_root": merkle.range_root(0, old, hashes),
        "new_size": new,
        "new_root": merkle.range_root(0, new, hashes),
        "proof": _consistency(hashes, old, new),
    }
    wrong = data.draw(
        st.one_of(
            st.fixed_dictionaries({"old_size": st.integers(-2, 310)}),
            st.fixed_dictionaries({"old_root": _FORGED}),
            st.fixed_dictionaries({"new_root": _FORGED}),
            st.fixed_dictionaries({"proof": _mutated(facts["proof"])}),
        )
    )
    if facts | wrong == facts:
        merkle.verify_consistency(**facts)
        return
    with pytest.raises(ProofError):
        merkle.verify_consistency(**facts | wrong)


def _mutated(proof: list[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Return proofs with one hash changed, added or missing, or with the order changed."""
    others = [st.just([*proof, b"\x00" * 32]), st.permutations(proof)]
    if proof:
        others += [
            st.just(proof[:-1]),
            st.just(proof[1:]),
            st.just([proof[0][:-1], *proof[1:]]),
            st.integers(0, len(proof) - 1).map(
                lambda i: [*proof[:i], bytes([proof[i][0] ^ 1]) + proof[i][1:], *proof[i + 1 :]]
            ),
        ]
    return st.one_of(others)


HASHES = [bytes([number]) * 32 for number in range(40)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    size = draw(st.integers(1, 40))
    indices = draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True))
    return HASHES[:size], sorted(indices)


def check(leaves: list[bytes], indices: list[int], proof: list[bytes], size: int) -> None:
    merkle.verify_leaves(
        leaves={index: leaves[index] for index in indices},
        size=size,
        proof=proof,
        expected_root=trees.root(leaves),
    )


def prove(leaves: list[bytes], indices: list[int]) -> list[bytes]:
    ranges = merkle.sibling_ranges(indices, len(leaves))
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
        merkle.verify_leaves(
            leaves=own | {one: b"\xee" * 32}, size=len(leaves), proof=proof, expected_root=root
        )
    moved = data.draw(st.integers(0, len(leaves)))
    if moved not in own:
        others = {index: leaf for index, leaf in own.items() if index != one}
        with pytest.raises(ProofError):
            merkle.verify_leaves(
                leaves=others | {moved: own[one]},
                size=len(leaves),
                proof=proof,
                expected_root=root,
            )


@pytest.mark.parametrize("leaves", [{}, {-1: b""}, {40: b""}])
def test_indices_outside_of_the_tree_are_refused(leaves: dict) -> None:
    with pytest.raises(ProofError, match="outside"):
        merkle.verify_leaves(leaves=leaves, size=40, proof=[], expected_root=b"")


def test_a_vast_size_ends_at_once() -> None:
    with pytest.raises(ProofError):
        merkle.verify_leaves(leaves={5: b"x"}, size=2**63 - 1, proof=[], expected_root=b"")


def test_adjacent_leaves_need_few_ranges_however_many_there_are() -> None:
    for size in (10**3, 10**6, 10**9):
        ranges = merkle.sibling_ranges(range(size // 3, size // 3 + 200), size)
        assert len(ranges) <= 2 * size.bit_length()
