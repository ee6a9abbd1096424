"""Commitments tell kinds, ids, ordinals and salts apart."""

from app.domain.commitments import commitment


def test_no_two_meanings_share_a_commitment() -> None:
    commitments = [
        commitment("record", "x", 0, salt=b"a" * 32),
        commitment("record", "x", 0, salt=b"b" * 32),
        commitment("record", "y", 0, salt=b"a" * 32),
        commitment("record", "x", 1, salt=b"a" * 32),
        commitment("subject", "x", 0, salt=b"a" * 32),
        commitment("subject", "x", 1, salt=b"a" * 32),
        commitment("subject", "x", 0, salt=b"b" * 32),
    ]
    assert len(set(commitments)) == len(commitments)
