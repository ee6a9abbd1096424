"""A disk of its own for a directory, small enough to be filled."""

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK = bytes(1024 * 1024)
_FILLER = "filler"


@contextmanager
def small_disk(directory: Path, *, size_mb: int) -> Iterator[bool]:
    """Mount a small file system on ``directory``; say whether this machine allows it."""
    directory.mkdir(parents=True, exist_ok=True)
    mounted = _succeeds(
        "mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=755", "tmpfs", directory
    )
    try:
        yield mounted
    finally:
        if mounted:
            _succeeds("umount", directory) or _succeeds("umount", "--lazy", directory)


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """Leave not a byte on the disk that holds ``directory``."""
    filler = directory / _FILLER
    try:
        fill_up(filler)
        yield
    finally:
        filler.unlink(missing_ok=True)


def fill_up(filler: Path) -> None:
    """Write to a file until the disk is full."""
    with filler.open("ab", buffering=0) as file:
        for chunk in (_CHUNK, _CHUNK[:4096], _CHUNK[:1]):
            try:
                while file.write(chunk):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def _succeeds(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
