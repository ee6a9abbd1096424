"""Receipts: only who holds salt and ids finds their records, and none may be missing."""

import base64
import json
from typing import Any

import pytest

from app.domain.errors import VerificationError
from app.domain.ids import commitment, member_commitment
from app.evidence.certificates.bundle import LeafProof, RequestProof
from app.evidence.certificates.receipts import Receipt, check_receipt
from app.evidence.certificates.schema import (
    Excluded,
    Forgotten,
    MemberSection,
    Release,
    Tree,
    read_statement,
)
from tests.support import trees
from tests.support.statements import synthetic

SALT = b"s" * 32
OTHERS = [bytes([number]) * 32 for number in range(20)]
RECORD = commitment("record", "r1", 0, salt=SALT)
SUBJECT = [commitment("subject", "p1", n, salt=SALT) for n in (0, 2)]
COVERED = [*OTHERS[:7], RECORD, SUBJECT[0], *OTHERS[7:]]
EXCLUDED = [*OTHERS[:3], SUBJECT[1]]


def receipt(**changes: Any) -> Receipt:
    document = {
        "receipt_salt": base64.b64encode(SALT).decode(),
        "records": 3,
        "record_ids": ["r1"],
        "subject_ids": ["p1"],
    }
    return Receipt.from_json(json.dumps(document | changes).encode())


def leaves(commitments: list[bytes], own: list[bytes]) -> LeafProof:
    indices = sorted(commitments.index(each) for each in own)
    return LeafProof(
        leaves={index: commitments[index] for index in indices},
        siblings=tuple(trees.multiproof(commitments, indices)),
    )


def tree(commitments: list[bytes]) -> Tree:
    return Tree(size=len(commitments), root=trees.root(commitments).hex())


def stated(covered: list[bytes] = COVERED, excluded: list[bytes] = EXCLUDED) -> Forgotten:
    """Return what a certificate states; the counts are for other checks."""
    return Forgotten(
        since_version=1,
        requests=9,
        records=9,
        before_training=0,
        covered=tree(covered),
        excluded_records=3,
        excluded=tree(excluded),
    )


def without(records: list[bytes], *, first: int, leaves: int) -> Excluded:
    """Return what a certificate states that is about some leaves of a tree alone."""
    return Excluded(
        since_version=1,
        requests=1,
        records=leaves,
        excluded=tree(records),
        first=first,
        leaves=leaves,
    )


PROOF = RequestProof(
    covered=leaves(COVERED, [RECORD, SUBJECT[0]]), excluded=leaves(EXCLUDED, [SUBJECT[1]])
)


def check(proof: RequestProof | None = PROOF, **changes: Any) -> str:
    return check_receipt(receipt(**changes), proof, stated())


def test_every_record_is_accounted_for() -> None:
    assert check() == "2 records are covered, 1 never touched the weights"


def test_ids_are_compared_after_unicode_normalisation() -> None:
    composed, decomposed = "Zo\u00eb", "Zoe\u0308"
    committed = [commitment("record", composed, 0, salt=SALT)]
    committed += [commitment("subject", decomposed, 1, salt=SALT)]
    covered = [*OTHERS, *committed]
    proof = RequestProof(covered=leaves(covered, committed), excluded=None)

    for names in ([decomposed], [composed], [composed, decomposed]):
        own = receipt(records=2, record_ids=names, subject_ids=names)
        found = check_receipt(own, proof, stated(covered))
        assert found.startswith("2 records are covered")


def test_an_id_names_each_record_that_was_pushed_with_it() -> None:
    again = [commitment("record", "r1", number, salt=SALT) for number in (0, 1, 2)]
    covered = [*OTHERS, *again]
    own = receipt(records=3, subject_ids=[])
    proof = RequestProof(covered=leaves(covered, again), excluded=None)
    assert check_receipt(own, proof, stated(covered)).startswith("3 records are covered")
    # Neither may one be missing, nor the first.
    for some in (again[:2], again[1:]):
        proof = RequestProof(covered=leaves(covered, some), excluded=None)
        with pytest.raises(VerificationError):
            check_receipt(own, proof, stated(covered))


def test_an_id_that_is_listed_twice_is_one_record() -> None:
    assert check(record_ids=["r1", "r1"], subject_ids=["p1", "p1"]) == check()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"records": 4}, "3 of 4"),
        ({"record_ids": ["r2"]}, "another request"),
        ({"subject_ids": []}, "another request"),
        ({"receipt_salt": base64.b64encode(b"t" * 32).decode()}, "another request"),
        ({"record_ids": []}, "another request"),
        # However many records it states, each id needs its proof.
        ({"record_ids": ["r1", "r2"]}, "1 of its 2 record_ids are not proved"),
        ({"record_ids": ["r1", "r2"], "records": 4}, "3 of 4"),
        ({"subject_ids": ["p1", "p2"]}, "records of its subject_ids are not proved"),
    ],
)
def test_a_receipt_that_does_not_fit(changes: dict, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason) as caught:
        check(**changes)
    assert caught.value.step == "receipt"


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (None, "not made for a request"),
        (RequestProof(None, None), "0 of 3"),
        (RequestProof(PROOF.covered, None), "2 of 3"),
        (RequestProof(PROOF.covered, PROOF.covered), "not under"),
        (RequestProof(leaves(EXCLUDED, [SUBJECT[1]]), PROOF.excluded), "not under"),
        (RequestProof(leaves(COVERED, [*OTHERS[:1], RECORD]), PROOF.excluded), "another request"),
    ],
)
def test_a_bundle_that_leaves_a_record_out(proof: RequestProof | None, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        check(proof)


def test_a_certificate_of_excluded_records_covers_none_and_means_only_its_own() -> None:
    own = sorted([RECORD, *SUBJECT])
    leaves_of = [*OTHERS, *own, *OTHERS[:3]]
    proof = RequestProof(None, leaves(leaves_of, own))
    meant = without(leaves_of, first=20, leaves=3)
    assert check_receipt(receipt(), proof, meant) == (
        "0 records are covered, 3 never touched the weights"
    )
    for first in (19, 21):
        with pytest.raises(VerificationError, match="not about all of its records"):
            check_receipt(receipt(), proof, without(leaves_of, first=first, leaves=3))
    with pytest.raises(VerificationError, match="no tree for these"):
        check_receipt(receipt(), PROOF, meant)


def test_another_root_fails_and_so_does_a_size_of_another_shape() -> None:
    """A root does not say how large its tree is; a proof of another shape does not fit."""
    for covered, size in ((COVERED[:-1], len(COVERED)), (COVERED, 16), (COVERED, 8)):
        lie = Tree(size=size, root=trees.root(covered).hex())
        with pytest.raises(VerificationError, match="not under"):
            check_receipt(receipt(), PROOF, stated().model_copy(update={"covered": lie}))


def test_leaves_in_another_order_or_without_one_of_them_fail() -> None:
    for covered in (COVERED[::-1], COVERED[1:], [*COVERED[:7], *COVERED[8:9], RECORD]):
        with pytest.raises(VerificationError, match="not under"):
            check_receipt(receipt(), PROOF, stated(covered))


def test_covered_and_excluded_trees_cannot_be_exchanged() -> None:
    with pytest.raises(VerificationError, match="not under"):
        check_receipt(receipt(), PROOF, stated(EXCLUDED, COVERED))
    swapped = RequestProof(PROOF.excluded, PROOF.covered)
    with pytest.raises(VerificationError, match="not under"):
        check_receipt(receipt(), swapped, stated())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"receipt_salt": 5, "records": 1, "record_ids": ["a"]}',
        b'{"receipt_salt": "AA==", "records": 1, "record_ids": ["a"]}',
        b'{"receipt_salt": "!", "records": 1, "record_ids": ["a"]}',
        json.dumps({"receipt_salt": base64.b64encode(SALT).decode(), "records": 1}).encode(),
    ],
)
def test_what_is_no_receipt(content: bytes) -> None:
    with pytest.raises(VerificationError) as caught:
        Receipt.from_json(content)
    assert caught.value.step == "receipt"


@pytest.mark.parametrize(
    "changes",
    [
        {"records": 0},
        {"records": True},
        {"records": 10**9},
        {"record_ids": [5]},
        {"record_ids": 5},
        {"record_ids": ["\ud800"]},
    ],
)
def test_numbers_and_ids_that_make_no_sense(changes: dict) -> None:
    with pytest.raises(VerificationError):
        receipt(**changes)


def test_a_record_on_both_sides_does_not_stand_for_another() -> None:
    """Two roots are the operator's to choose: one record under both accounts for one."""
    both = [*OTHERS[:3], RECORD]
    proof = RequestProof(
        covered=leaves(COVERED, [RECORD, SUBJECT[0]]), excluded=leaves(both, [RECORD])
    )
    with pytest.raises(VerificationError, match="2 of 3"):
        check_receipt(receipt(), proof, stated(excluded=both))


def test_a_record_is_not_both_covered_and_never_used() -> None:
    """Nor where all are accounted for besides."""
    both = [*OTHERS[:3], RECORD, SUBJECT[1]]
    proof = RequestProof(
        covered=leaves(COVERED, [RECORD, SUBJECT[0]]), excluded=leaves(both, [RECORD, SUBJECT[1]])
    )
    with pytest.raises(VerificationError, match="both as covered and as never used"):
        check_receipt(receipt(), proof, stated(excluded=both))


PERSON = [commitment("subject", "p1", n, salt=SALT) for n in (0, 1)]
LEARNED = [*OTHERS[:7], RECORD, *PERSON, *OTHERS[7:]]
BEFORE = read_statement(json.dumps(synthetic()["sharded_retraining"].statement).encode())[0]


def of_members(
    record: int,
    person: tuple[int, int],
    trained_in: tuple[int, ...] = (2, 3, 3),
    *,
    since: Release | None = None,
    records: int = len(LEARNED),
) -> str:
    """Check a receipt of three covered records of an ensemble in its third version.

    A member with a negative ``trained_in`` is out since that version.
    """
    member = dict.fromkeys(LEARNED, 0) | dict(
        zip([RECORD, *PERSON], (record, *person), strict=True)
    )
    in_tree = [member_commitment(each, member[each]) for each in LEARNED]
    places = [LEARNED.index(each) for each in (RECORD, *PERSON)]
    proof = LeafProof(
        leaves={place: LEARNED[place] for place in places},
        siblings=tuple(trees.multiproof(in_tree, places)),
        members={place: member[LEARNED[place]] for place in places},
    )
    return check_receipt(
        receipt(),
        RequestProof(covered=proof, excluded=None),
        stated(in_tree).model_copy(update={"records": records}),
        members=[
            MemberSection(sha256="ab" * 32, trained_in=each)
            if each > 0
            else MemberSection(out_since=-each)
            for each in trained_in
        ],
        since=since,
    )


def before(size: int) -> Release:
    """Return the second version's certificate, with so many records and commitments."""
    predicate = BEFORE.predicate
    assert isinstance(predicate, Release)
    forgotten = predicate.forgotten.model_copy(
        update={"records": size, "covered": Tree(size=size, root="cd" * 32)}
    )
    model = predicate.model.model_copy(update={"version": 2})
    return predicate.model_copy(update={"forgotten": forgotten, "model": model})


def test_a_receipt_shows_to_which_members_its_records_belonged() -> None:
    assert of_members(1, (2, 2)).endswith("they belonged to members 1, 2")


def test_a_member_that_is_not_there_or_not_said_is_refused() -> None:
    with pytest.raises(VerificationError, match="a member that is not there"):
        of_members(3, (2, 2))
    alone = [MemberSection(sha256="ab" * 32, trained_in=2)]
    with pytest.raises(VerificationError, match="to which members its records belonged"):
        check_receipt(receipt(), PROOF, stated(), members=alone)


def test_a_subject_in_two_members_is_refused() -> None:
    with pytest.raises(VerificationError, match="subject's records belonged to several members"):
        of_members(1, (1, 2))


def test_a_member_has_to_be_trained_since_its_lineage_began_though_others_were() -> None:
    """That needs no older certificate."""
    with pytest.raises(VerificationError, match="member 0 was not trained anew"):
        of_members(0, (2, 2), trained_in=(1, 3, 3))


def test_a_member_has_to_be_trained_without_the_records_that_were_added_to_it() -> None:
    assert "members 1, 2" in of_members(1, (2, 2), since=before(7))
    assert "members 0, 2" in of_members(0, (2, 2), since=before(8))
    with pytest.raises(VerificationError, match="member 0 was not trained anew"):
        of_members(0, (2, 2), since=before(7))


def test_records_that_were_named_before_need_no_training_and_no_others_pass_for_them() -> None:
    """A request may name again what an older certificate accounts for."""
    added = len(LEARNED) - 7
    one_again = 7 + added - 1
    assert "members 0, 2" in of_members(0, (2, 2), since=before(7), records=one_again)
    with pytest.raises(VerificationError, match="member 0 was not trained anew"):
        of_members(2, (0, 0), since=before(7), records=one_again)


def test_a_member_that_is_out_forgot_its_records_and_an_active_one_that_learned_them_did_not() -> (
    None
):
    said = of_members(1, (2, 2), trained_in=(2, -2, 3))
    assert said.endswith("they belonged to members 1 (out since version 2), 2")
    assert "1 (out since version 2)" in of_members(
        1, (2, 2), trained_in=(2, -2, 3), since=before(7)
    )
    with pytest.raises(VerificationError, match="member 1 was not trained anew"):
        of_members(1, (2, 2), trained_in=(-2, 2, 3), since=before(7))
