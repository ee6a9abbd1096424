"""Signing statements: DSSE envelopes, Ed25519."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]

from app.certificates.private_keys import load_private_key
from app.domain.errors import ConfigurationError

PAYLOAD_TYPE = "application/vnd.in-toto+json"
BUNDLE_MEDIA_TYPE = "application/vnd.expunge.bundle.v1+json"


@dataclass(frozen=True)
class SignedStatement:
    """A statement in its envelope.

    Attributes:
        envelope: the DSSE envelope as JSON text.
        sha256: digest of the signed payload, in hex; later certificates refer to it.
    """

    envelope: str
    sha256: str


class StatementSigner:
    """Holds the service's private key."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._signer = CryptoSigner(private_key)
        self._public_key = private_key.public_key()

    @classmethod
    def from_file(cls, path: Path, *, create: bool = False) -> "StatementSigner":
        """Read the key from a PEM file of mode 0600; with ``create``, make it if it is missing.

        Raises:
            ConfigurationError: the file is missing, readable by others, or no Ed25519 key.
        """
        key = load_private_key(path, Ed25519PrivateKey.generate, create=create)
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigurationError(f"{path} is not an Ed25519 key")
        return cls(key)

    @property
    def key_id(self) -> str:
        """Identifier of the public key."""
        return str(self._signer.public_key.keyid)

    @property
    def public_key_pem(self) -> str:
        """The public key, for whoever verifies."""
        return self._public_key.public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        ).decode()

    def sign(self, statement: Mapping[str, Any]) -> SignedStatement:
        """Return the statement in a signed envelope."""
        payload = json.dumps(
            statement, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
        ).encode()
        envelope = Envelope(payload, PAYLOAD_TYPE, {})
        envelope.sign(self._signer)
        return SignedStatement(
            envelope=json.dumps(envelope.to_dict()), sha256=hashlib.sha256(payload).hexdigest()
        )
