"""The public keys that a verifier trusts: PEM, or the list that a service publishes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]

from app.certificates import strict_json
from app.domain.errors import VerificationError

MAX_BYTES: Final = 1024 * 1024
MAX_KEYS: Final = 1000
PURPOSE: Final = "certificates"
_PEM_END: Final = b"-----END PUBLIC KEY-----"


@dataclass(frozen=True)
class TrustedKey:
    """An Ed25519 key.

    Attributes:
        public_key: the key.
        valid_from, valid_until: when it signed, in UTC; None for no bound.
    """

    public_key: Ed25519PublicKey
    valid_from: datetime | None = None
    valid_until: datetime | None = None

    @property
    def id(self) -> str:
        """What envelopes call the key."""
        return str(SSlibKey.from_crypto(self.public_key).keyid)

    def was_valid(self, moment: datetime) -> bool:
        """Say whether the key was in use."""
        return (self.valid_from is None or self.valid_from <= moment) and (
            self.valid_until is None or moment <= self.valid_until
        )


def read_keys(content: bytes) -> list[TrustedKey]:
    """Read one or more keys in PEM, or a service's ``/.well-known/expunge-keys.json``.

    Of a list, the keys are taken whose purpose are certificates; they must be Ed25519 keys.

    Raises:
        VerificationError: it holds no key, or something else.
    """
    if len(content) > MAX_BYTES:
        raise VerificationError("keys", f"larger than {MAX_BYTES} bytes")
    listed = _published(content) if content.lstrip().startswith(b"{") else _pems(content)
    if not 1 <= len(listed) <= MAX_KEYS:
        raise VerificationError("keys", f"the file must hold 1 to {MAX_KEYS} public keys")
    return listed


def remember_key(path: Path, pem: str) -> None:
    """Put a key in front of those in a PEM file, which may be missing; once is enough."""
    kept = path.read_text() if path.exists() else ""
    if not kept.startswith(pem):
        path.write_text(pem + kept.replace(pem, ""))


def _pems(content: bytes) -> list[TrustedKey]:
    parts = [part for part in content.split(_PEM_END) if part.strip()]
    return [TrustedKey(_ed25519(part + _PEM_END + b"\n")) for part in parts[:MAX_KEYS]]


def _published(content: bytes) -> list[TrustedKey]:
    try:
        entries: Sequence[Mapping[str, Any]] = strict_json.loads(content)["keys"]
        return [
            TrustedKey(
                _ed25519(entry["pem"].encode()),
                valid_from=_moment(entry["valid_from"]),
                valid_until=_moment(entry["valid_until"]),
            )
            for entry in entries
            if entry["purpose"] == PURPOSE
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise VerificationError("keys", "not a list of public keys") from error


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return moment


def _ed25519(pem: bytes) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise VerificationError("keys", "the given key is not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise VerificationError("keys", "the given key is not an Ed25519 key")
    return key
