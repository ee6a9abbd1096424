"""Signed notes, as https://c2sp.org/signed-note defines them: a text and Ed25519 signatures.

The algorithm is never read from a note: keys come from elsewhere and are Ed25519. Signatures by
other keys are ignored, as the specification demands; one in the name of a given key must be valid.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from app.domain.errors import NoteError

MAX_NOTE_BYTES = 64 * 1024
MAX_SIGNATURES = 16
_ID_BYTES = 4
_DASH = "\N{EM DASH} "


@dataclass(frozen=True)
class NoteKey:
    """A public key and its name, which is not empty and has neither white space nor a plus."""

    name: str
    public_key: Ed25519PublicKey

    algorithm: ClassVar[bytes] = b"\x01"

    def __post_init__(self) -> None:
        """Reject a name that is not valid in a note."""
        if not _is_name(self.name):
            raise NoteError("a key's name must hold neither white space nor '+'")

    @property
    def id(self) -> bytes:
        """The first four bytes of SHA-256(name, newline, algorithm, public key)."""
        content = self.name.encode() + b"\n" + self.algorithm + self.public_key.public_bytes_raw()
        return hashlib.sha256(content).digest()[:_ID_BYTES]

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse a key from the format of ``str``, name+id+key, or raise ``NoteError``."""
        name, _, rest = text.strip().partition("+")
        _, _, encoded = rest.partition("+")
        try:
            raw = base64.b64decode(encoded, validate=True)
            key = cls(name, Ed25519PublicKey.from_public_bytes(raw[1:]))
        except (binascii.Error, ValueError) as error:
            raise NoteError("not a verifier key: name+id+key") from error
        if str(key) != text.strip():
            raise NoteError("not a verifier key of this kind: name+id+key")
        return key

    def verify(self, signature: bytes, text: str) -> None:
        """Check a signature of a text; ``InvalidSignature`` if it is not this key's."""
        self.public_key.verify(signature, text.encode())

    def __str__(self) -> str:
        """Return the key in the format name+id+key."""
        raw = base64.b64encode(self.algorithm + self.public_key.public_bytes_raw()).decode()
        return f"{self.name}+{self.id.hex()}+{raw}"


def sign_note(text: str, *, key: NoteKey, sign: Callable[[bytes], bytes]) -> str:
    """Return the note of a text with one signature, made by ``sign`` and verified by ``key``."""
    _check_text(text)
    return f"{text}\n{signature_line(key, sign(text.encode()))}"


def signature_line(key: NoteKey, signature: bytes) -> str:
    """Return the line that ends a note with a signature by a key."""
    return f"{_DASH}{key.name} {base64.b64encode(key.id + signature).decode()}\n"


def open_note(note: bytes, keys: Collection[NoteKey]) -> str:
    """Return a note's text, or raise ``NoteError`` unless one of the keys has signed it."""
    text, signed = signatures_by(note, keys)
    if not signed:
        raise NoteError("the note is not signed by a trusted key")
    return text


def signatures_by(note: bytes, keys: Collection[NoteKey]) -> tuple[str, Sequence[NoteKey]]:
    """Return a note's text and the keys that have signed it; a wrong signature is an error."""
    text, signatures = _split(note)
    signed: list[NoteKey] = []
    for name, key_id, signature in signatures:
        for key in keys:
            if (key.name, key.id) != (name, key_id):
                continue
            try:
                key.verify(signature, text)
            except InvalidSignature as error:
                raise NoteError("the note's signature is wrong") from error
            signed.append(key)
    return text, signed


def _split(note: bytes) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    if len(note) > MAX_NOTE_BYTES:
        raise NoteError(f"the note is larger than {MAX_NOTE_BYTES} bytes")
    try:
        whole = note.decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise NoteError("the note is not UTF-8") from error
    text, blank, tail = whole.rpartition("\n\n")
    text += "\n"
    if not blank or not tail.endswith("\n"):
        raise NoteError("the note has no signatures")
    _check_text(text)
    lines = tail[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise NoteError(f"the note has more than {MAX_SIGNATURES} signatures")
    return text, [_signature(line) for line in lines]


def _signature(line: str) -> tuple[str, bytes, bytes]:
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoteError("a signature line is malformed") from error
    if (
        not line.startswith(_DASH)
        or not space
        or not _is_name(name)
        or base64.b64encode(content).decode() != encoded
        or len(content) <= _ID_BYTES
    ):
        raise NoteError("a signature line is malformed")
    return name, content[:_ID_BYTES], content[_ID_BYTES:]


def _check_text(text: str) -> None:
    if not text.endswith("\n") or any(ord(c) < 0x20 and c != "\n" for c in text):
        raise NoteError("a note's text must end in a newline and have no other control character")


def _is_name(name: str) -> bool:
    return bool(name) and name.isprintable() and not any(c.isspace() or c == "+" for c in name)
