"""Files of this machine, under a folder that the operator allows.

The operator's own path is followed wherever it leads. Below it no link is: each part of a path is
opened by itself, relative to the one before, so that nothing can be exchanged for a link in
between, and everything but folders and regular files is refused without being opened.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final

from app.domain.errors import ImportFailedError, SourceUnavailableError
from app.domain.places import Place
from workers.data.imports.sources import chosen

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DEEPEST: Final = 64


class FolderSource:
    """See ``Source``."""

    def __init__(self, place: Place, prefix: Place) -> None:
        """Open the prefix and look at the place."""
        self._place = place
        self._below = place.folder[len(prefix.segments) :]
        try:
            self._root = os.open("/" + "/".join(prefix.segments), _FLAGS)
        except OSError as error:
            raise _failed("the prefix", error) from error
        try:
            top = _opened(self._root, self._below)
            self._is_file = stat.S_ISREG(os.fstat(top).st_mode)
            os.close(top)
        except OSError as error:
            self.close()
            raise _failed(place.folder[-1], error) from error
        except ImportFailedError:
            self.close()
            raise
        if self._is_file and (place.is_pattern or place.is_folder):
            self.close()
            raise ImportFailedError(f"{place.folder[-1]}: it is a file, not a folder")

    def list(self) -> Sequence[str]:
        """Return the files, sorted."""
        if self._is_file:
            return [self._place.segments[-1]]
        try:
            top = _opened(self._root, self._below)
            try:
                return chosen(self._place, _walk(top, ()))
            finally:
                os.close(top)
        except OSError as error:
            raise _failed("the folder", error) from error

    def open(self, name: str) -> "_LocalFile":
        """Open a file."""
        path = self._below if self._is_file else (*self._below, *name.split("/"))
        try:
            return _LocalFile(name, _opened(self._root, path))
        except OSError as error:
            raise _failed(name, error) from error

    def close(self) -> None:
        """Close the prefix."""
        os.close(self._root)


class _LocalFile:
    """See ``SourceFileReader``."""

    def __init__(self, name: str, descriptor: int) -> None:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            os.close(descriptor)
            raise ImportFailedError(f"{name}: it is not a file")
        self._name = name
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self.size = facts.st_size
        self.version = _version(facts)

    def read_at(self, offset: int, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            more = os.pread(self._file.fileno(), size - len(content), offset + len(content))
            if not more:
                raise _changed(self._name)
            content += more
        return bytes(content)

    def require_same(self) -> None:
        if _version(os.fstat(self._file.fileno())) != self.version:
            raise _changed(self._name)

    def close(self) -> None:
        self._file.close()


def _opened(root: int, path: Sequence[str]) -> int:
    """Open what lies below a folder; a new descriptor, even of the folder itself."""
    here = os.dup(root)
    try:
        for segment in path:
            _require_plain(here, segment)
            deeper = os.open(segment, _FLAGS | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = deeper
    except BaseException:
        os.close(here)
        raise
    return here


def _require_plain(folder: int, segment: str) -> None:
    """Refuse links, devices and pipes before they are opened."""
    if segment in ("", ".", "..") or "/" in segment:
        raise ImportFailedError("a name leads elsewhere")
    mode = os.stat(segment, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        raise ImportFailedError(f"{segment}: it is a link, and links are not followed")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ImportFailedError(f"{segment}: it is neither a file nor a folder")


def _walk(folder: int, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each file below a folder.

    Raises:
        ImportFailedError: a link that has a name to be read, or folders nest too deeply.
    """
    if len(above) > _DEEPEST:
        raise ImportFailedError(f"folders nest more than {_DEEPEST} deep")
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        if name.startswith((".", "_")) or not name.isprintable():
            continue
        _require_plain(folder, name)
        below = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
        try:
            if stat.S_ISDIR(os.fstat(below).st_mode):
                yield from _walk(below, (*above, name))
            else:
                yield (*above, name)
        finally:
            os.close(below)


def _version(facts: os.stat_result) -> str:
    return f"{facts.st_size}-{facts.st_mtime_ns}-{facts.st_ino}"


def _changed(name: str) -> SourceUnavailableError:
    return SourceUnavailableError(f"{name}: it was changed while it was read")


def _failed(name: str, error: OSError) -> Exception:
    words = os.strerror(error.errno) if error.errno else type(error).__name__
    if isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        return ImportFailedError(f"{name}: {words}")
    return SourceUnavailableError(f"{name}: {words}")
