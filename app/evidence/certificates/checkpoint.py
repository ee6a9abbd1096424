"""Checkpoints of the log, as https://c2sp.org/tlog-checkpoint defines them.

A signed note of three lines: the log's origin, the tree's size in decimal, its root in base64.
Further lines are extensions, which are kept and otherwise ignored.
"""

import base64
import binascii
import re
from collections.abc import Collection
from dataclasses import dataclass

from app.domain.errors import NoteError
from app.domain.merkle import HASH_BYTES
from app.evidence.certificates.note import NoteKey, open_note

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
