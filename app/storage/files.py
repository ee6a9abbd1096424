"""Files that are written atomically and overwritten before they are removed."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_BUFFER_BYTES = 1024 * 1024


def write_durably(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file of mode 0600; after a crash it exists completely or not at all."""
    unfinished = path.with_suffix(".part")
    unfinished.touch(mode=0o600)
    with unfinished.open("wb", buffering=0) as file:
        for part in parts:
            handle = file.fileno()
            view = memoryview(part)
            while view:
                view = view[os.write(handle, view) :]
        os.fsync(file.fileno())
    unfinished.rename(path)
    sync_directory(path.parent)


def erase(path: Path) -> None:
    """Unlink a file, overwrite its bytes with zeros and remove it.

    A missing file is not an error; leftovers of an interrupted write or erasure are erased too.
    Bytes that were read while the name still existed are therefore the file's own.
    """
    unfinished, doomed = path.with_suffix(".part"), path.with_suffix(".doomed")
    with suppress(FileNotFoundError):
        path.rename(doomed)
    for left in (doomed, unfinished):
        try:
            with left.open("r+b") as file:
                remaining = os.fstat(file.fileno()).st_size
                while remaining > 0:
                    remaining -= file.write(bytes(min(_BUFFER_BYTES, remaining)))
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError:
            continue  # it never existed, or another process has erased it
        left.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a directory's entries durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
