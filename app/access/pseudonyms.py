"""Owners' ids as keyed hashes, so that the database never holds them.

The key is kept outside the database. It allows the service to recognise an id that is presented
again, for example in a second request for the same person, but not to read ids back.
"""

import hmac
import os
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from cryptography.hazmat.primitives.cmac import CMAC

from app.domain.ids import normal_id
from app.runtime.keyfiles import key_file

KEY_BYTES = 32
_BLOCK_BYTES: Final = 16
"""AES'."""
_FIELD: Final = (1 << 128) | 0x87


class Pseudonyms:
    """Keyed hashes of ids, with separate domains per kind and, if applicable, per dataset.

    Ids of records and subjects come by the million, so theirs is AES-256-CMAC, which hashes many at
    once; all others are HMAC-SHA256.
    """

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
        return self._key_of("record", dataset_id, record_id)

    def subject(self, dataset_id: str, subject_id: str) -> bytes:
        """Return the 32-byte key of a subject id within a dataset."""
        return self._key_of("subject", dataset_id, subject_id)

    def records(self, dataset_id: str, record_ids: pa.Array) -> npt.NDArray[np.uint8]:
        """Return what ``record`` does, of n ids in their one spelling, (n, 32)."""
        return self._keys_of("record", dataset_id, record_ids)

    def subjects(self, dataset_id: str, subject_ids: pa.Array) -> npt.NDArray[np.uint8]:
        """Return what ``subject`` does, of n ids in their one spelling, (n, 32)."""
        return self._keys_of("subject", dataset_id, subject_ids)

    def upload(self, dataset_id: str, content: bytes) -> bytes:
        """Return a 32-byte keyed digest of an upload."""
        return self._digest("upload", dataset_id, content)

    def external_id(self, external_id: str) -> bytes:
        """Return the 32-byte key of a caller's own request id, of any form."""
        return self._digest("external id", "", external_id.encode())

    def idempotency_key(self, idempotency_key: str) -> bytes:
        """Return the 32-byte key of an ``Idempotency-Key``, of any form."""
        return self._digest("idempotency key", "", idempotency_key.encode())

    def receipt_salt(self, request_id: str, salt: bytes) -> bytes:
        """Return the 32-byte salt of a forget request's commitments; it is not stored.

        It follows from the request's own random ``salt`` and the key: it is gone with either.
        """
        return self._digest("receipt salt", request_id, salt)

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

    def _key_of(self, kind: str, dataset_id: str, owners_id: str) -> bytes:
        macs = [CMAC(AES(key)) for key in self._halves(kind, dataset_id)]
        for mac in macs:
            mac.update(normal_id(owners_id).encode())
        return b"".join(mac.finalize() for mac in macs)

    def _keys_of(self, kind: str, dataset_id: str, ids: pa.Array) -> npt.NDArray[np.uint8]:
        texts = ids.cast(pa.large_binary()).fill_null(b"")
        if not len(texts):
            return np.empty((0, KEY_BYTES), dtype=np.uint8)
        ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset :][: len(texts) + 1]
        content = np.frombuffer(texts.buffers()[2] or b"\0", np.uint8)
        halves = self._halves(kind, dataset_id)
        return np.hstack([_cmacs(key, content, ends) for key in halves])

    def _halves(self, kind: str, dataset_id: str) -> list[bytes]:
        """Return the keys of the two halves of a pseudonym: AES makes 16 bytes."""
        return [self._digest(f"{kind} {half}", dataset_id, b"") for half in ("first", "second")]

    def _digest(self, kind: str, dataset_id: str, content: bytes) -> bytes:
        return hmac.digest(self._key, f"{kind}\0{dataset_id}\0".encode() + content, "sha256")


def _cmacs(
    key: bytes, content: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Return the AES-CMAC (NIST SP 800-38B) of n texts between n + 1 places of a content, (n, 16).

    All texts go through AES together, one block of each at a time.
    """
    encrypt = Cipher(AES(key), ECB()).encryptor().update  # noqa: S305 - a block is what CMAC takes
    zero = int.from_bytes(encrypt(bytes(_BLOCK_BYTES)), "big")
    subkeys = [
        np.frombuffer(each.to_bytes(_BLOCK_BYTES, "big"), np.uint8) for each in _doubled(zero)
    ]
    starts, sizes = ends[:-1], np.diff(ends)
    last = np.maximum(0, sizes - 1) // _BLOCK_BYTES
    macs = np.zeros((len(sizes), _BLOCK_BYTES), dtype=np.uint8)
    column = np.arange(_BLOCK_BYTES)
    for number in range(int(last.max()) + 1):
        rows = np.flatnonzero(last >= number)
        left = (sizes[rows] - number * _BLOCK_BYTES)[:, None]
        places = np.minimum(
            (starts[rows] + number * _BLOCK_BYTES)[:, None] + column, len(content) - 1
        )
        block = np.where(column < left, content[places], (column == left) * np.uint8(0x80))
        ending = (last[rows] == number)[:, None]
        block ^= ending * np.where(left >= _BLOCK_BYTES, *subkeys)
        mixed = encrypt((macs[rows] ^ block).tobytes())
        macs[rows] = np.frombuffer(mixed, np.uint8).reshape(-1, _BLOCK_BYTES)
    return macs


def _doubled(number: int) -> tuple[int, int]:
    """Return a number times x and times x^2 in the field of CMAC."""
    once = (number << 1) ^ (_FIELD if number >> 127 else 0)
    return once, (once << 1) ^ (_FIELD if once >> 127 else 0)
