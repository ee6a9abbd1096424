"""The service's keys, in PEM files, and signing with its Ed25519 key: DSSE envelopes, and notes.

One key signs both, because no message of one kind can be taken for the other: the signed content
of a DSSE envelope begins with "DSSEv1 ", and a note's first line is a key's name, without a space.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]

from app.domain import strict_json
from app.domain.errors import ConfigurationError, NoteError
from app.evidence.certificates.note import NoteKey, sign_note
from app.runtime.keyfiles import key_file

PAYLOAD_TYPE = "application/vnd.in-toto+json"
Key = TypeVar("Key", bound=PrivateKeyTypes)


def load_private_key(path: Path, generate: Callable[[], Key], *, create: bool) -> PrivateKeyTypes:
    """Read a key from a PEM file that only its owner may read; ``create`` makes a missing one."""
    content = key_file(
        path,
        lambda: generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        create=create,
    )
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            f"{path} is not a private key in PEM format without a password"
        ) from error


def public_pem(key: PublicKeyTypes) -> str:
    """Return a public key's PEM text."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@dataclass(frozen=True)
class SignedStatement:
    """A DSSE envelope, and the digest by which later certificates refer to its payload."""

    envelope: str
    sha256: str


class StatementSigner:
    """Holds the service's private key."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self._signer = CryptoSigner(private_key)
        self.public_key = private_key.public_key()

    @classmethod
    def from_file(cls, path: Path, *, create: bool = False) -> "StatementSigner":
        """Read or make the key, an Ed25519 one, as ``load_private_key`` does."""
        key = load_private_key(path, Ed25519PrivateKey.generate, create=create)
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigurationError(f"{path} is not an Ed25519 key")
        return cls(key)

    @property
    def key_id(self) -> str:
        """Identifier of the public key."""
        return str(self._signer.public_key.keyid)

    def sign(self, statement: Mapping[str, Any]) -> SignedStatement:
        """Sign a statement in an envelope."""
        payload = payload_from(statement)
        return SignedStatement(
            envelope=self.sign_payload(payload), sha256=hashlib.sha256(payload).hexdigest()
        )

    def sign_payload(self, payload: bytes) -> str:
        """Sign a statement's exact text; return the envelope as JSON text."""
        envelope = Envelope(payload, PAYLOAD_TYPE, {})
        envelope.sign(self._signer)
        return json.dumps(envelope.to_dict())

    def note_key(self, name: str) -> NoteKey:
        """Return the public key as a key for notes under this name."""
        return NoteKey(name, self.public_key)

    def sign_note(self, text: str, *, name: str) -> str:
        """Sign a text, which begins with the name, as a note (https://c2sp.org/signed-note)."""
        if text.partition("\n")[0] != name:
            raise NoteError("a signed text must begin with the signer's name")
        return sign_note(text, key=self.note_key(name), sign=self._private_key.sign)


def payload_from(statement: Mapping[str, Any]) -> bytes:
    """Return a statement's signed form."""
    return json.dumps(
        statement, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    ).encode()


def statement_of(envelope: str) -> dict[str, Any]:
    """Return the content of one of our envelopes without checking signatures."""
    statement: dict[str, Any] = strict_json.loads(payload_of(envelope))
    return statement


def payload_of(envelope: str) -> bytes:
    """Return the exact signed text of one of our envelopes without checking signatures."""
    return base64.b64decode(strict_json.loads(envelope)["payload"])


def signer_of(envelope: str) -> str:
    """Return the key id in one of our envelopes without checking signatures."""
    return str(strict_json.loads(envelope)["signatures"][0]["keyid"])


def is_signed(envelope: str, key: Ed25519PublicKey) -> bool:
    """Return whether a key has signed one of our envelopes."""
    read = Envelope.from_dict(strict_json.loads(envelope))
    try:
        for signature in read.signatures.values():
            key.verify(bytes.fromhex(signature.signature), read.pae())
    except (InvalidSignature, ValueError):
        return False
    return bool(read.signatures)
