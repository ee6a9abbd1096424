"""Salted commitments: whether an id is covered can be checked only with both id and salt."""

import hmac

SALT_BYTES = 32


def record_commitment(*, salt: bytes, record_id: str) -> bytes:
    """Commit to a record that was requested by its own id."""
    return hmac.digest(salt, b"record\0" + record_id.encode(), "sha256")


def subject_commitment(*, salt: bytes, subject_id: str, ordinal: int) -> bytes:
    """Commit to a subject's record number ``ordinal``, counted from 0 in the order of upload."""
    return hmac.digest(salt, f"subject\0{subject_id}\0{ordinal}".encode(), "sha256")
