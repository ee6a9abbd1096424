"""Signed notes, as https://c2sp.org/signed-note defines them: a text and Ed25519 signatures.

The algorithm is never read from a note: keys come from elsewhere and are Ed25519. Signatures by
other keys are ignored, as the specification demands; one in the name of a given key must be valid.

A checkpoint (https://c2sp.org/tlog-checkpoint) is a note of three lines: the log's origin, the
tree's size in decimal, its root in base64. Further lines are extensions, which are kept and
otherwise ignored. A witness's cosignature (https://c2sp.org/tlog-cosignature) is another signature
line: when it saw the checkpoint, and that the log only grew through all that it cosigned.
"""

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from app.domain.errors import NoteError, VerificationError
from app.domain.merkle import HASH_BYTES

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


MAX_SIZE = 2**63 - 1
MAX_EXTENSIONS = 16
_LINES = 3
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """The log's signed state: its first ``size`` entries have this root; origin is its name."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the signed text."""
        root = base64.b64encode(self.root).decode()
        return "\n".join((self.origin, str(self.size), root, *self.extensions, ""))

    @classmethod
    def from_text(cls, text: str) -> "Checkpoint":
        """Parse a text in its canonical form; ``NoteError`` if it is not a checkpoint."""
        lines = text.split("\n")
        if len(lines) < _LINES + 1:
            raise NoteError("not a checkpoint: it has too few lines")
        origin, size, root, *extensions = lines[:-1]
        if not origin or not _SIZE.fullmatch(size) or int(size) > MAX_SIZE:
            raise NoteError("not a checkpoint: its first two lines are an origin and a size")
        if len(extensions) > MAX_EXTENSIONS or not all(extensions):
            raise NoteError("not a checkpoint: too many extension lines, or an empty one")
        try:
            digest = base64.b64decode(root, validate=True)
        except (binascii.Error, ValueError) as error:
            raise NoteError("not a checkpoint: its third line is a root in base64") from error
        if len(digest) != HASH_BYTES:
            raise NoteError(f"not a checkpoint: a root has {HASH_BYTES} bytes")
        checkpoint = cls(origin, int(size), digest, tuple(extensions))
        if checkpoint.text() != text:
            raise NoteError("not a checkpoint: it is not spelt as it was signed")
        return checkpoint


def open_checkpoint(note: bytes, keys: Collection[NoteKey]) -> Checkpoint:
    """Return the checkpoint in a note that one of the keys signed as its log, or ``NoteError``."""
    text = open_note(note, keys)
    checkpoint = Checkpoint.from_text(text)
    open_note(note, [key for key in keys if key.name == checkpoint.origin])
    return checkpoint


def origin_of(note: bytes) -> str:
    """Return the first line of an unverified note, with which to look up its key."""
    return note.partition(b"\n")[0].decode("utf-8", errors="replace")


def size_of(note: bytes) -> int:
    """Return the size in an unverified checkpoint, where a proof starts, or raise ``NoteError``."""
    text, blank, _ = note.decode("utf-8", errors="replace").rpartition("\n\n")
    return Checkpoint.from_text(text + blank[:1]).size


_TIME = struct.Struct(">Q")
_MOST_SECONDS = 2**63 - 1


@dataclass(frozen=True)
class WitnessKey(NoteKey):
    """A witness's public key and name."""

    algorithm: ClassVar[bytes] = b"\x04"

    def verify(self, signature: bytes, text: str) -> None:
        """Check a cosignature of a checkpoint's text, or raise ``InvalidSignature``."""
        if len(signature) <= _TIME.size:
            raise InvalidSignature
        (time_s,) = _TIME.unpack(signature[: _TIME.size])
        if time_s > _MOST_SECONDS:
            raise InvalidSignature
        self.public_key.verify(signature[_TIME.size :], cosigned(text, time_s))


def cosigned(text: str, time_s: int) -> bytes:
    """Return what a witness signs of a checkpoint's text at a time, in seconds since 1970."""
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()


def is_cosignature(line: str, note: str, witness: WitnessKey) -> bool:
    """Say whether a line is a witness's cosignature of a checkpoint's note, and nothing more."""
    text, blank, _ = note.rpartition("\n\n")
    try:
        open_note(f"{text}{blank}{line}".encode(), [witness])
    except NoteError:
        return False
    return line.count("\n") == 1


def check_witnesses(note: bytes, witnesses: Sequence[WitnessKey], *, required: int) -> str:
    """Check that enough of the given witnesses have cosigned a checkpoint; return how many."""
    try:
        _, signed = signatures_by(note, witnesses)
    except NoteError as error:
        raise VerificationError("witnesses", str(error)) from error
    # One key under two names is one witness.
    found = {key.public_key.public_bytes_raw() for key in signed}
    count = f"{len(found)} of {len(witnesses)} have cosigned its checkpoint"
    if len(found) < required:
        raise VerificationError(
            "witnesses",
            f"{count}, {required} are required: download it again later",
        )
    return count
