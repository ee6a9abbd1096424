"""The keys that a verifier trusts: those of one log, with their periods of validity.

    origin   the log's name, with which its checkpoints begin
    keys     each with its PEM text, ``valid_from``, ``valid_until`` and ``compromised_since``

The key in use has no end, and only it signs the current log. With a stolen, retired key an attacker
cannot create a log that a verifier with the current list accepts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]

from app.domain import strict_json
from app.domain.errors import NoteError, VerificationError
from app.evidence.certificates.note import NoteKey
from app.evidence.certificates.signing import public_pem

MAX_BYTES: Final = 1024 * 1024
MAX_KEYS: Final = 1000
PURPOSE: Final = "certificates"
ALGORITHM: Final = "ed25519"
_DATES: Final = ("valid_from", "valid_until", "compromised_since")
_FIELDS: Final = {"key_id", "algorithm", "purpose", "pem", *_DATES}


@dataclass(frozen=True)
class TrustedKey:
    """An Ed25519 key and its period of use; without a bound, None."""

    public_key: Ed25519PublicKey
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    compromised_since: datetime | None = None

    @cached_property
    def id(self) -> str:
        """The key's id in envelopes."""
        return str(SSlibKey.from_crypto(self.public_key).keyid)

    @property
    def end(self) -> datetime | None:
        """When its signatures stop being valid; None for the key in use."""
        ends = [end for end in (self.valid_until, self.compromised_since) if end is not None]
        return min(ends, default=None)

    def is_in_use(self, now: datetime) -> bool:
        """Return whether the key may sign now."""
        return self.end is None or now < self.end

    def vouches_for(self, moment: datetime, *, now: datetime) -> bool:
        """Return whether this key was valid for a certificate that the log recorded at ``moment``.

        The key in use also re-signs what a compromised key had signed.
        """
        return self.is_in_use(now) or (
            (self.valid_from is None or self.valid_from <= moment)
            and (self.end is None or moment < self.end)
        )

    @property
    def pem(self) -> str:
        """The key as its text."""
        return public_pem(self.public_key)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        moments = {
            name: None if (moment := getattr(self, name)) is None else moment.isoformat()
            for name in _DATES
        }
        return {
            "key_id": self.id,
            "algorithm": ALGORITHM,
            "purpose": PURPOSE,
            "pem": self.pem,
            **moments,
        }


@dataclass(frozen=True)
class TrustedKeys:
    """A verifier's prior knowledge about one service: its log's name, and all its keys so far."""

    origin: str
    keys: tuple[TrustedKey, ...]

    def note_keys(self, *, in_use_at: datetime | None = None) -> list[NoteKey]:
        """Return the keys for checking the log's notes; all, or those in use."""
        return [
            NoteKey(self.origin, key.public_key)
            for key in self.keys
            if in_use_at is None or key.is_in_use(in_use_at)
        ]

    def rotated(
        self, new: Ed25519PublicKey, *, at: datetime, compromised_since: datetime | None = None
    ) -> "TrustedKeys":
        """Return the list with another key in the place of the one that was in use."""
        old = tuple(
            key
            if key.valid_until is not None
            else replace(key, valid_until=at, compromised_since=compromised_since)
            for key in self.keys
        )
        return TrustedKeys(self.origin, (TrustedKey(new, valid_from=at), *old))

    def difference(self, other: "TrustedKeys") -> str | None:
        """Say in words where another list differs first, None if it says the same."""
        if self.origin != other.origin:
            return f"origin: {self.origin}, {other.origin}"
        mine = {key.id: key for key in self.keys}
        theirs = {key.id: key for key in other.keys}
        for key_id in sorted(mine.keys() ^ theirs.keys()):
            return f"key {key_id}: only the {'first' if key_id in mine else 'second'} has it"
        for key_id, key in mine.items():
            for name in _DATES:
                one, another = getattr(key, name), getattr(theirs[key_id], name)
                if one != another:
                    return f"key {key_id}, {name}: {one}, {another}"
        return None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"origin": self.origin, "keys": [key.to_json() for key in self.keys]}

    def to_bytes(self) -> bytes:
        """Return the list in its file format."""
        return json.dumps(self.to_json(), indent=1).encode() + b"\n"

    def write(self, path: Path) -> None:
        """Write the list to a file, atomically."""
        new = path.with_name(path.name + ".new")
        new.write_bytes(self.to_bytes())
        new.replace(path)


def read_trusted_keys(content: bytes) -> TrustedKeys:
    """Parse a list as a service publishes it; keys for other purposes are skipped."""
    if len(content) > MAX_BYTES:
        raise VerificationError("keys", f"larger than {MAX_BYTES} bytes")
    try:
        document: Mapping[str, Any] = strict_json.loads(content)
        entries: Sequence[Mapping[str, Any]] = document["keys"]
        _require(set(document) == {"origin", "keys"})
        _require(all(set(entry) == _FIELDS for entry in entries))
        keys = tuple(_key(entry) for entry in entries if entry["purpose"] == PURPOSE)
        trusted = TrustedKeys(document["origin"], keys)
        trusted.note_keys()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NoteError) as error:
        raise VerificationError("keys", "not a list of trusted keys") from error
    if not 1 <= len({key.id for key in keys}) == len(keys) <= MAX_KEYS:
        raise VerificationError("keys", f"the file must hold 1 to {MAX_KEYS} different keys")
    return trusted


def _key(entry: Mapping[str, Any]) -> TrustedKey:
    key = TrustedKey(
        ed25519_of(entry["pem"]),
        valid_from=_moment(entry["valid_from"]),
        valid_until=_moment(entry["valid_until"]),
        compromised_since=_moment(entry["compromised_since"]),
    )
    if (entry["key_id"], entry["algorithm"]) != (key.id, ALGORITHM):
        raise VerificationError("keys", "a key does not match its id")
    return key


def _require(condition: bool) -> None:  # noqa: FBT001
    if not condition:
        raise ValueError


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return moment


def ed25519_of(pem: str) -> Ed25519PublicKey:
    """Read a public key in PEM; ``VerificationError`` if it is not an Ed25519 key."""
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise VerificationError("keys", "a key is not a PEM public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise VerificationError("keys", "a key is not an Ed25519 key")
    return key
