"""The checkpoint that a client keeps from one download to the next.

With its first bundle a client pins the log: each later bundle must prove that its log has only
grown since. This reveals any other log, even one that was made with a stolen key.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.domain.errors import DownloadError, NoteError
from app.evidence.certificates.checkpoint import size_of
from app.evidence.certificates.note import MAX_NOTE_BYTES

CHECKPOINT_FILENAME: Final = "log.checkpoint"


@dataclass(frozen=True)
class KeptCheckpoint:
    """What is known of a log from earlier downloads; before the first, only the path."""

    path: Path
    note: bytes | None
    size: int | None

    def replace(self, note: str) -> None:
        """Keep a newer checkpoint, which was verified against this one."""
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(note, encoding="utf-8")
        new.replace(self.path)


@contextmanager
def kept_checkpoint(path: Path) -> Iterator[KeptCheckpoint]:
    """Read what is kept; other downloads that use the same file wait meanwhile.

    Raises:
        DownloadError: the file holds no checkpoint.
    """
    with _held(path.parent):
        try:
            note = path.read_bytes()[: MAX_NOTE_BYTES + 1]
        except FileNotFoundError:
            yield KeptCheckpoint(path, None, None)
            return
        try:
            size = size_of(note)
        except NoteError as error:
            raise DownloadError(f"{path} holds no checkpoint of a log") from error
        yield KeptCheckpoint(path, note, size)


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
