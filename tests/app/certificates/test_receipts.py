"""Receipts: only who holds salt and ids finds their records, and none may be missing."""

import base64
import json
from typing import Any

import pytest

from app.certificates.bundle import LeafProof, RequestProof
from app.certificates.receipts import Receipt, check_receipt
from app.domain import merkle, multiproof
from app.domain.commitments import record_commitment, subject_commitment
from app.domain.errors import VerificationError

SALT = b"s" * 32
OTHERS = [bytes([number]) * 32 for number in range(20)]
RECORD = record_commitment(salt=SALT, record_id="r1")
SUBJECT = [subject_commitment(salt=SALT, subject_id="p1", ordinal=n) for n in (0, 2)]
COVERED = sorted([*OTHERS, RECORD, SUBJECT[0]])
EXCLUDED = sorted([*OTHERS[:3], SUBJECT[1]])


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
        size=len(commitments),
        leaves={index: commitments[index] for index in indices},
        siblings=tuple(multiproof.prove(commitments, indices)),
    )


PROOF = RequestProof(
    covered=leaves(COVERED, [RECORD, SUBJECT[0]]), excluded=leaves(EXCLUDED, [SUBJECT[1]])
)


def check(proof: RequestProof | None = PROOF, **changes: Any) -> str:
    return check_receipt(
        receipt(**changes),
        proof,
        covered_root=merkle.root(COVERED).hex(),
        excluded_root=merkle.root(EXCLUDED).hex(),
    )


def test_every_record_is_accounted_for() -> None:
    assert check() == "2 records are covered, 1 never touched the weights"


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


def test_a_certificate_without_excluded_records_cannot_exclude_any() -> None:
    with pytest.raises(VerificationError, match="no root"):
        check_receipt(receipt(), PROOF, covered_root=merkle.root(COVERED).hex(), excluded_root=None)


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
    both = sorted([*OTHERS[:3], RECORD])
    proof = RequestProof(
        covered=leaves(COVERED, [RECORD, SUBJECT[0]]), excluded=leaves(both, [RECORD])
    )
    with pytest.raises(VerificationError, match="2 of 3"):
        check_receipt(
            receipt(),
            proof,
            covered_root=merkle.root(COVERED).hex(),
            excluded_root=merkle.root(both).hex(),
        )
