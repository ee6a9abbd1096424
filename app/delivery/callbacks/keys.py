"""Encryption and derivation with the callbacks' key, which is kept outside the database.

Addresses are encrypted because they may hold tokens or personal data. The secrets that sign
callbacks are derived from the key, so the database holds none of them.
"""

import base64
import hmac
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import func
from sqlalchemy.orm import Session

from app.delivery.callbacks.tables import CallbackSecretRow
from app.domain.errors import CallbackError
from app.evidence import log
from app.runtime.database.queries import stored
from app.runtime.keyfiles import key_file

KEY_BYTES = 32
_NONCE_BYTES = 12
_SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of all Standard Webhooks secrets


class CallbackKeys:
    """Encrypts addresses and derives each caller's signing secret."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = AESGCM(self._derive("address"))

    @classmethod
    def from_file(cls, path: Path, *, create: bool = False) -> "CallbackKeys":
        """Read the key from a file of mode 0600; with ``create``, make it if it is missing."""
        return cls(key_file(path, lambda: os.urandom(KEY_BYTES), create=create))

    def encrypt(self, url: str, *, endpoint_id: str) -> bytes:
        """Encrypt an address, bound to this key and endpoint."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, url.encode(), endpoint_id.encode())

    def decrypt(self, stored: bytes, *, endpoint_id: str) -> str:
        """Decrypt an address; ``CallbackError`` if it is of another key or endpoint."""
        nonce, content = stored[:_NONCE_BYTES], stored[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, content, endpoint_id.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise CallbackError("its address cannot be decrypted under this key") from error

    def digest(self, url: str, *, api_key_id: str) -> bytes:
        """Return 32 bytes that are equal for equal addresses of one caller."""
        return self._derive("same-address", api_key_id, url)

    def secret(self, api_key_id: str, *, generation: int) -> str:
        """Return a caller's signing secret in the format of Standard Webhooks."""
        secret = self._derive("secret", api_key_id, str(generation))
        return _SECRET_PREFIX + base64.b64encode(secret).decode()

    def _derive(self, *names: str) -> bytes:
        return hmac.digest(self._key, "\0".join(names).encode(), "sha256")


OVERLAP = timedelta(hours=24)
"""How long callbacks are signed with the previous secret as well."""


@dataclass(frozen=True)
class SigningSecret:
    """A caller's secret, and until when the previous one signs as well."""

    secret: str
    rotated_at: datetime | None
    previous_until: datetime | None


def current(session: Session, keys: CallbackKeys, api_key_id: str) -> SigningSecret:
    """Return a caller's secret."""
    return _secret(keys, api_key_id, session.get(CallbackSecretRow, api_key_id))


def rotate(session: Session, keys: CallbackKeys, api_key_id: str) -> SigningSecret:
    """Give a caller a new secret, and log it."""
    row = session.get(CallbackSecretRow, api_key_id, with_for_update=True)
    if row is None:
        row = CallbackSecretRow(api_key_id=api_key_id, generation=0)
        session.add(row)
    row.generation += 1
    row.rotated_at = func.clock_timestamp()
    log.append(session, "callback_secret.rotated", key=api_key_id)
    return _secret(keys, api_key_id, stored(session, row))


def signing(
    keys: CallbackKeys,
    api_key_id: str,
    *,
    generation: int,
    rotated_at: datetime | None,
    now: datetime,
) -> list[str]:
    """Return the secrets to sign with at a given time, newest first."""
    secrets = [keys.secret(api_key_id, generation=generation)]
    if rotated_at is not None and now < rotated_at + OVERLAP:
        secrets.append(keys.secret(api_key_id, generation=generation - 1))
    return secrets


def _secret(keys: CallbackKeys, api_key_id: str, row: CallbackSecretRow | None) -> SigningSecret:
    return SigningSecret(
        secret=keys.secret(api_key_id, generation=0 if row is None else row.generation),
        rotated_at=None if row is None else row.rotated_at,
        previous_until=None if row is None else row.rotated_at + OVERLAP,
    )
