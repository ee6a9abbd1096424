"""Salted commitments: whether an id is covered can be checked only with both id and salt."""

import hashlib
import hmac
from typing import Literal

from app.domain.owners_ids import normal_id

SALT_BYTES = 32


def commitment(
    kind: Literal["record", "subject"], owners_id: str, ordinal: int, *, salt: bytes
) -> bytes:
    """Commit to one of the records that were pushed with an id, or of a subject.

    They are counted from 0 in the order of upload.
    """
    named = f"{kind}\0{normal_id(owners_id)}\0{ordinal}"
    return hmac.digest(salt, named.encode(), "sha256")


def member_commitment(commitment: bytes, member: int) -> bytes:
    """Commit to a record, given by its own commitment, and the member that learned from it."""
    return hashlib.sha256(b"member\0" + member.to_bytes(4) + commitment).digest()
