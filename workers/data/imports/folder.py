"""Files of this machine, under a folder that the operator allows.

A path, and every file below a folder, is followed to where it really is, and refused unless that
lies under the operator's own path.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.domain.errors import ImportFailedError, SourceUnavailableError
from app.domain.places import Place
from workers.data.imports.sources import chosen


class FolderSource:
    """See ``Source``."""

    def __init__(self, place: Place, prefix: Place) -> None:
        """Look at the place."""
        self._place = place
        self._prefix = _real(Path("/", *prefix.segments))
        self._top = self._inside(Path("/", *place.folder))
        if self._top.is_file():
            if place.is_pattern or place.is_folder:
                raise ImportFailedError(f"{self._top.name}: it is a file, not a folder")
        elif not self._top.is_dir():
            raise ImportFailedError(f"{self._top.name}: it is neither a file nor a folder")

    def list(self) -> Sequence[str]:
        """Return the files, sorted."""
        if self._top.is_file():
            return [self._place.segments[-1]]
        try:
            return chosen(self._place, _walk(self._top))
        except OSError as error:
            raise _failed("the folder", error) from error

    def open(self, name: str) -> "_LocalFile":
        """Open a file."""
        path = self._inside(self._top if self._top.is_file() else self._top / name)
        if not path.is_file():
            raise ImportFailedError(f"{name}: it is not a file")
        try:
            return _LocalFile(name, path)
        except OSError as error:
            raise _failed(name, error) from error

    def close(self) -> None:
        """Nothing is held open."""

    def _inside(self, path: Path) -> Path:
        """Return where a path leads, which must be under the prefix."""
        real = _real(path)
        if not real.is_relative_to(self._prefix):
            raise ImportFailedError(f"{path.name}: it is a link out of what may be imported")
        return real


class _LocalFile:
    """See ``SourceFileReader``."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._file = path.open("rb", buffering=0)
        facts = os.fstat(self._file.fileno())
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


def _real(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except OSError as error:
        raise _failed(path.name, error) from error
    except RuntimeError as error:
        raise ImportFailedError(f"{path.name}: it is a link that leads to itself") from error


def _walk(top: Path) -> Iterator[tuple[str, ...]]:
    """Yield the path of each file below a folder; a link to a folder is refused, not followed."""

    def fail(error: OSError) -> None:
        raise error

    for folder, below, names in os.walk(top, onerror=fail):
        here = Path(folder)
        below[:] = sorted(filter(_is_shown, below))
        for name in below:
            if (here / name).is_symlink():
                raise ImportFailedError(f"{name}: it is a link to a folder: import that folder")
        for name in filter(_is_shown, names):
            yield (*here.relative_to(top).parts, name)


def _is_shown(name: str) -> bool:
    return not name.startswith((".", "_")) and name.isprintable()


def _version(facts: os.stat_result) -> str:
    return f"{facts.st_size}-{facts.st_mtime_ns}-{facts.st_ino}"


def _changed(name: str) -> SourceUnavailableError:
    return SourceUnavailableError(f"{name}: it was changed while it was read")


def _failed(name: str, error: OSError) -> Exception:
    words = os.strerror(error.errno) if error.errno else type(error).__name__
    if isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        return ImportFailedError(f"{name}: {words}")
    return SourceUnavailableError(f"{name}: {words}")
