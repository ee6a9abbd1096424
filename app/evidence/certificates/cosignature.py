"""Cosignatures of checkpoints by witnesses, as https://c2sp.org/tlog-cosignature defines them.

A witness states the time at which it saw a checkpoint, and that the log of that name has only grown
through all checkpoints that it cosigned. The statement is another signature line of the note.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.domain.errors import NoteError, VerificationError
from app.evidence.certificates.note import NoteKey, open_note, signature_line, signatures_by

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
        self.public_key.verify(signature[_TIME.size :], _message(text, time_s))


def cosignature_line(
    private_key: Ed25519PrivateKey, key: WitnessKey, text: str, *, time_s: int
) -> str:
    """Return a witness's line for a checkpoint's text at a time, in seconds since 1970."""
    return signature_line(key, _TIME.pack(time_s) + private_key.sign(_message(text, time_s)))


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


def _message(text: str, time_s: int) -> bytes:
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()
