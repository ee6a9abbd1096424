"""Salted commitments: whether an id is covered can be checked only with both id and salt."""

import hashlib
import hmac

from app.domain.owners_ids import normal_id

SALT_BYTES = 32


def record_commitment(*, salt: bytes, record_id: str) -> bytes:
    """Commit to a record that was requested by its own id."""
    return hmac.digest(salt, b"record\0" + normal_id(record_id).encode(), "sha256")


def subject_commitment(*, salt: bytes, subject_id: str, ordinal: int) -> bytes:
    """Commit to a subject's record number ``ordinal``, counted from 0 in the order of upload."""
    named = f"subject\0{normal_id(subject_id)}\0{ordinal}"
    return hmac.digest(salt, named.encode(), "sha256")


def member_commitment(commitment: bytes, member: int) -> bytes:
    """Commit to a record, given by its own commitment, and the member that learned from it."""
    return hashlib.sha256(b"member\0" + member.to_bytes(4) + commitment).digest()
