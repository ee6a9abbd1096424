"""The interface of object stores, and an implementation with files, which are erased durably."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from app.domain.errors import CorruptObjectError, GoneError, ObjectStoreError

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


class ObjectReader(Protocol):
    """Reads a part of an object from its beginning to its end."""

    object_size: int

    def read(self, size: int) -> bytes:
        """Return exactly the next ``size`` bytes of the part."""

    def close(self) -> None:
        """Release the reader's resources; safe to repeat."""


class ObjectStore(Protocol):
    """Named objects: written once, read, deleted for good.

    Every method raises ``ObjectStoreError`` if the store fails now.
    """

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Store an object durably and atomically."""

    def open_range(self, name: str, start: int, stop: int) -> ObjectReader:
        """Read bytes ``start`` up to, not including, ``stop``; at least one byte."""

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is not an error."""

    def names(self) -> Iterator[str]:
        """Yield the names of all objects."""


class LocalObjectStore:
    """Objects as files in one directory that is private to its owner."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Store an object atomically as a file of mode 0600."""
        try:
            write_durably(self._root / name, parts)
        except OSError as error:
            raise _failed("written", error) from error

    def open_range(self, name: str, start: int, stop: int) -> ObjectReader:
        """Read bytes ``start`` up to ``stop``; ``GoneError`` if the object does not exist."""
        return _FileReader(self._root / name, start, stop)

    def delete(self, name: str) -> None:
        """Overwrite and remove an object; a missing one is not an error."""
        try:
            erase(self._root / name)
        except OSError as error:
            raise _failed("deleted", error) from error

    def names(self) -> Iterator[str]:
        """Yield the names of all objects, including unfinished ones."""
        for path in self._root.iterdir():
            yield path.stem


class _FileReader:
    """A part of a file. A deleted object loses its name before its bytes change.

    Every read therefore ends with a check that the name still exists.
    """

    def __init__(self, path: Path, start: int, stop: int) -> None:
        self._path = path
        try:
            self._file = path.open("rb", buffering=0)
            self.object_size = os.fstat(self._file.fileno()).st_size
        except FileNotFoundError as error:
            raise GoneError("the stored object was shredded") from error
        except OSError as error:
            raise _failed("read", error) from error
        self._remaining = stop - start
        self._file.seek(start)

    def read(self, size: int) -> bytes:
        """Return exactly the next ``size`` bytes."""
        try:
            wanted = min(size, self._remaining)
            content = self._file.read(wanted)
            while len(content) < wanted and (more := self._file.read(wanted - len(content))):
                content += more
        except OSError as error:
            raise _failed("read", error) from error
        if not self._path.exists():
            raise GoneError("the stored object was shredded")
        if len(content) < size:
            raise CorruptObjectError(f"object {self._path.name} is shorter than what was stored")
        self._remaining -= size
        return content

    def close(self) -> None:
        """Close the file; safe to repeat."""
        self._file.close()


def _failed(what: str, error: OSError) -> ObjectStoreError:
    return ObjectStoreError(f"an object cannot be {what}: {error.strerror}")
