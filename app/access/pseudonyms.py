"""Owners' ids as keyed hashes, so that the database never holds them.

The key is kept outside the database. It allows the service to recognise an id that is presented
again, for example in a second request for the same person, but not to read ids back.
"""

import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from app.domain.ids import normal_id
from app.runtime.keyfiles import key_file

KEY_BYTES = 32
_BLOCK_BYTES: Final = 64
"""SHA-256's; a key is not longer."""


class Pseudonyms:
    """HMAC-SHA256 of ids, with separate domains per kind and, if applicable, per dataset."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def from_file(cls, path: Path, *, create: bool = False) -> "Pseudonyms":
        """Read the key from a file of mode 0600; with ``create``, make it if it is missing.

        Raises:
            ConfigurationError: the file is missing, or others may read it.
        """
        return cls(key_file(path, lambda: os.urandom(KEY_BYTES), create=create))

    def record(self, dataset_id: str, record_id: str) -> bytes:
        """Return the 32-byte key of a record id within a dataset."""
        return self._digest("record", dataset_id, normal_id(record_id).encode())

    def subject(self, dataset_id: str, subject_id: str) -> bytes:
        """Return the 32-byte key of a subject id within a dataset."""
        return self._digest("subject", dataset_id, normal_id(subject_id).encode())

    def records(self, dataset_id: str, record_ids: Sequence[str]) -> list[bytes]:
        """Return what ``record`` does, of many."""
        digest = self._digests("record", dataset_id)
        return [digest(normal_id(each).encode()) for each in record_ids]

    def subjects(self, dataset_id: str, subject_ids: Sequence[str | None]) -> list[bytes | None]:
        """Return what ``subject`` does, of many, often the same; None stays None."""
        digest = self._digests("subject", dataset_id)
        known: dict[str | None, bytes | None] = dict.fromkeys(subject_ids)
        for each in known:
            known[each] = None if each is None else digest(normal_id(each).encode())
        return [known[each] for each in subject_ids]

    def upload(self, dataset_id: str, content: bytes) -> bytes:
        """Return a 32-byte keyed digest of an upload."""
        return self._digest("upload", dataset_id, content)

    def external_id(self, external_id: str) -> bytes:
        """Return the 32-byte key of a caller's own request id, of any form."""
        return self._digest("external id", "", external_id.encode())

    def idempotency_key(self, idempotency_key: str) -> bytes:
        """Return the 32-byte key of an ``Idempotency-Key``, of any form."""
        return self._digest("idempotency key", "", idempotency_key.encode())

    def receipt_salt(self, request_id: str) -> bytes:
        """Return the 32-byte salt of a forget request's commitments; it is not stored."""
        return self._digest("receipt salt", "", request_id.encode())

    def caller(self, issuer: str, subject: str) -> bytes:
        """Return the 32-byte key of a caller identified by a token issuer."""
        return self._digest("caller", issuer, subject.encode())

    def counted(self, what: str, who: str) -> bytes:
        """Return 32 bytes that identify the rate counter of an address or a caller."""
        return self._digest("counted", what, who.encode())

    def session(self, token: str, key_id: str) -> bytes:
        """Return the 32-byte seal that binds a session's secret to an API key."""
        return self._digest("session", key_id, token.encode())

    def call(self, purpose: str, caller_id: str, content: bytes) -> bytes:
        """Return 32 bytes that identify one caller's call, for one purpose."""
        return self._digest(f"call {purpose}", caller_id, content)

    def _digests(self, kind: str, dataset_id: str) -> Callable[[bytes], bytes]:
        """Return ``_digest`` of many contents, begun once: HMAC by its definition in RFC 2104.

        Copies of ``hmac``'s own objects take twice as long.
        """
        padded = np.frombuffer(self._key.ljust(_BLOCK_BYTES, b"\0"), np.uint8)
        inner = hashlib.sha256((padded ^ 0x36).tobytes() + _prefix(kind, dataset_id))
        outer = hashlib.sha256((padded ^ 0x5C).tobytes())

        def digest(content: bytes) -> bytes:
            hashed, mac = inner.copy(), outer.copy()
            hashed.update(content)
            mac.update(hashed.digest())
            return mac.digest()

        return digest

    def _digest(self, kind: str, dataset_id: str, content: bytes) -> bytes:
        return hmac.digest(self._key, _prefix(kind, dataset_id) + content, "sha256")


def _prefix(kind: str, dataset_id: str) -> bytes:
    return f"{kind}\0{dataset_id}\0".encode()
