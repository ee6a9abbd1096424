"""The body a log sends to a witness, as https://c2sp.org/tlog-witness defines it.

old 20852014
<hashes of an RFC 6962 consistency proof, each in base64>

<the checkpoint, a signed note>
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.domain.errors import NoteError
from app.domain.trees.merkle import HASH_BYTES
from app.evidence.certificates.checkpoint import MAX_SIZE
from app.evidence.certificates.note import MAX_NOTE_BYTES

PATH: Final = "/add-checkpoint"
SIZE_MEDIA_TYPE: Final = "text/x.tlog.size"
MAX_PROOF: Final = 63
MAX_BYTES: Final = MAX_NOTE_BYTES + 64 * (MAX_PROOF + 1)
_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})", re.ASCII)


@dataclass(frozen=True)
class Submission:
    """A checkpoint, and the proof that it extends the one that the witness cosigned last."""

    old_size: int
    proof: Sequence[bytes]
    note: str

    def to_bytes(self) -> bytes:
        """Encode the request body."""
        lines = [f"old {self.old_size}", *(base64.b64encode(h).decode() for h in self.proof), ""]
        return ("\n".join(lines) + "\n" + self.note).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Submission":
        """Parse a request body; ``NoteError`` if it is too large or malformed."""
        if len(content) > MAX_BYTES:
            raise NoteError(f"larger than {MAX_BYTES} bytes")
        try:
            head, blank, note = content.decode().partition("\n\n")
            old, *lines = head.split("\n")
            proof = [base64.b64decode(line, validate=True) for line in lines]
        except (UnicodeDecodeError, binascii.Error, ValueError) as error:
            raise NoteError("not a checkpoint with a proof") from error
        match = _OLD.fullmatch(old)
        if not blank or match is None or int(match[1]) > MAX_SIZE or len(proof) > MAX_PROOF:
            raise NoteError("not a checkpoint with a proof")
        if any(len(hashed) != HASH_BYTES for hashed in proof):
            raise NoteError("a hash has the wrong length")
        return cls(int(match[1]), proof, note)
