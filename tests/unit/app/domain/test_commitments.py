"""Commitments tell kinds, ids, ordinals and salts apart."""

from app.domain.commitments import record_commitment, subject_commitment


def test_no_two_meanings_share_a_commitment() -> None:
    commitments = [
        record_commitment(salt=b"a" * 32, record_id="x"),
        record_commitment(salt=b"b" * 32, record_id="x"),
        record_commitment(salt=b"a" * 32, record_id="y"),
        subject_commitment(salt=b"a" * 32, subject_id="x", ordinal=0),
        subject_commitment(salt=b"a" * 32, subject_id="x", ordinal=1),
        subject_commitment(salt=b"b" * 32, subject_id="x", ordinal=0),
    ]
    assert len(set(commitments)) == len(commitments)
