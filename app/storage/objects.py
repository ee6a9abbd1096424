"""Where the bytes of blobs lie.

An object that is being deleted loses its name before its bytes are overwritten. So bytes that were
read while the name was still there are the object's own, and every read ends by looking for it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from app.domain.errors import GoneError

_CHUNK_BYTES = 1024 * 1024


class ObjectRange(Protocol):
    """The bytes of a part of an object, chunk by chunk."""

    def __iter__(self) -> Iterator[bytes]:
        """Return itself."""

    def __next__(self) -> bytes:
        """Return the next chunk; ``GoneError`` if the object was shredded meanwhile."""

    def close(self) -> None:
        """Give up what the range holds; safe to repeat."""


class ObjectStore(Protocol):
    """Named objects: written once, read, deleted for good."""

    def write(self, name: str, content: bytes) -> None:
        """Store ``content`` durably under a new name."""

    def open_range(self, name: str, start: int, stop: int) -> ObjectRange:
        """Read bytes ``start`` up to, not including, ``stop``; ``GoneError`` if it is not there."""

    def read(self, name: str) -> bytes:
        """Return a whole object; ``GoneError`` if it does not exist."""

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

    def open_range(self, name: str, start: int, stop: int) -> ObjectRange:
        """Read bytes ``start`` up to, not including, ``stop``; ``GoneError`` if it is not there."""
        return _FileRange(self._root / name, start, stop)

    def read(self, name: str) -> bytes:
        """Return a whole object; ``GoneError`` if it does not exist."""
        path = self._root / name
        with _open(path) as file:
            content = file.read()
        _require_there(path)
        return content

    def delete(self, name: str) -> None:
        """Overwrite and remove an object; a missing one is no error."""
        path = self._root / name
        unfinished, doomed = path.with_suffix(".part"), path.with_suffix(".doomed")
        with suppress(FileNotFoundError):
            path.rename(doomed)
        for left in (doomed, unfinished):
            try:
                _overwrite(left)
            except FileNotFoundError:
                continue  # never there, or another sweep was faster
            left.unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        """Yield the names of all objects, unfinished ones included."""
        for path in self._root.iterdir():
            yield path.stem


class _FileRange:
    """A part of a file, which ends with an error when the file loses its name."""

    def __init__(self, path: Path, start: int, stop: int) -> None:
        self._path = path
        self._remaining = stop - start
        self._file = _open(path)
        self._file.seek(start)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._remaining <= 0:
            self.close()
            raise StopIteration
        chunk = self._file.read(min(_CHUNK_BYTES, self._remaining))
        _require_there(self._path)
        if not chunk:
            raise GoneError("the stored object is shorter than it should be")
        self._remaining -= len(chunk)
        return chunk

    def close(self) -> None:
        """Close the file; safe to repeat."""
        self._file.close()


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError as error:
        raise GoneError("the stored object was shredded") from error


def _require_there(path: Path) -> None:
    if not path.exists():
        raise GoneError("the stored object was shredded")


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
