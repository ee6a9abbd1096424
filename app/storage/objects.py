"""Where the bytes of blobs lie."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from app.domain.errors import GoneError

_CHUNK_BYTES = 1024 * 1024


class ObjectStore(Protocol):
    """Named objects: written once, read, deleted for good."""

    def write(self, name: str, content: bytes) -> None:
        """Store ``content`` durably under a new name."""

    def open(self, name: str) -> BinaryIO:
        """Open an object for reading; ``GoneError`` if it does not exist."""

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is no error."""

    def names(self) -> Iterator[str]:
        """Yield the names of all objects."""


class LocalObjectStore:
    """Objects as files in one directory that only its owner may enter."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Store ``content`` under a new name, complete or not at all."""
        path = self._root / name
        unfinished = path.with_suffix(".part")
        unfinished.touch(mode=0o600)
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        _sync_directory(self._root)

    def open(self, name: str) -> BinaryIO:
        """Open an object for reading; ``GoneError`` if it does not exist."""
        try:
            return (self._root / name).open("rb")
        except FileNotFoundError as error:
            raise GoneError("the stored object was shredded") from error

    def delete(self, name: str) -> None:
        """Overwrite and remove an object; a missing one is no error."""
        for path in (self._root / name, (self._root / name).with_suffix(".part")):
            try:
                _overwrite(path)
            except FileNotFoundError:
                continue  # never there, or another sweep was faster
            path.unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        """Yield the names of all objects, unfinished ones included."""
        for path in self._root.iterdir():
            yield path.stem


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        remaining = os.fstat(file.fileno()).st_size
        while remaining > 0:
            remaining -= file.write(bytes(min(_CHUNK_BYTES, remaining)))
        file.flush()
        os.fsync(file.fileno())
