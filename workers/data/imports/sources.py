"""Where an import's files are read: a folder of this machine, a bucket, an https server.

A source opens only what lies under the operator's prefix, whatever a name says or becomes.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from app.domain.errors import ImportFailedError
from app.domain.places import Place, require_importable
from app.registry.datasets.imports.decoding import RandomAccess
from app.runtime.settings import Settings

MOST_FILES: Final = 10_000
MOST_ENTRIES: Final = 1_000_000
_SUFFIX: Final = ".parquet"


class SourceFileReader(RandomAccess, Protocol):
    """An open file."""

    @property
    def version(self) -> str:
        """Return what differs when the file's content does."""

    def require_same(self) -> None:
        """Check that it still is what was opened; else raise ``SourceUnavailableError``."""

    def close(self) -> None:
        """Release it; safe to repeat."""


class Source(Protocol):
    """The files of one place.

    Methods raise ``ImportFailedError`` where trying again cannot help, and
    ``SourceUnavailableError`` where it may.
    """

    def list(self) -> Sequence[str]:
        """Return the place's files: their paths below its folder, sorted."""

    def open(self, name: str) -> SourceFileReader:
        """Open one of them."""

    def close(self) -> None:
        """Release all."""


def source_of(place: Place, settings: Settings) -> Source:
    """Return the source of a place.

    Raises:
        PlaceNotAllowedError: it lies under none of the operator's prefixes.
        ImportFailedError, SourceUnavailableError: it cannot be reached.
    """
    prefix = require_importable(place, settings.import_prefixes)
    if place.scheme == "file":
        from workers.data.imports.folder import FolderSource  # noqa: PLC0415 - only what is used

        return FolderSource(place, prefix)
    if place.scheme == "https":
        from workers.data.imports.https import HttpsSource  # noqa: PLC0415

        return HttpsSource(place, ca_file=settings.ca_file)
    from workers.data.imports.bucket import BucketSource, filesystem_of  # noqa: PLC0415

    return BucketSource(place, filesystem_of(place.scheme, settings))


def chosen(place: Place, paths: Iterable[Sequence[str]]) -> list[str]:
    """Return which files below a place's folder belong to it, by name.

    Of a folder they are the files that end with ``.parquet``, and whose path has no part that
    begins with a dot or an underscore.

    Args:
        place: a folder or a pattern.
        paths: each file's segments below the place's folder.

    Raises:
        ImportFailedError: there are none, or too many.
    """
    found: set[str] = set()
    for entries, path in enumerate(paths):
        if entries >= MOST_ENTRIES:
            raise ImportFailedError(f"the folder has more than {MOST_ENTRIES} files")
        if place.fits((*place.folder, *path)) if place.is_pattern else _is_data(path):
            found.add("/".join(path))
        if len(found) > MOST_FILES:
            raise ImportFailedError(f"there are more than {MOST_FILES} files: import them in parts")
    if not found:
        raise ImportFailedError("there are no Parquet files at this place")
    return sorted(found)


def _is_data(path: Sequence[str]) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path)
    return not hidden and path[-1].lower().endswith(_SUFFIX)
