"""Where an import's files are read: a folder of this machine, a bucket, an https server.

A source opens only what lies under the operator's prefix, whatever a name says or becomes: on this
machine, a path is followed to where it really is. Methods raise ``ImportFailedError`` where trying
again cannot help, and ``SourceUnavailableError`` where it may.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from pyarrow import fs

from app.domain.errors import ImportFailedError, SourceUnavailableError
from app.domain.places import Place, require_importable
from app.runtime.outgoing import trust
from app.runtime.settings import Settings

MOST_FILES: Final = 10_000
MOST_ENTRIES: Final = 1_000_000
_SUFFIX: Final = ".parquet"

_CONNECT_TIMEOUT_S: Final = 10
_TIMEOUT_S: Final = 60
_ATTEMPTS: Final = 5
_AWS_CODE: Final = re.compile(r"AWS Error ([A-Z_]+)")
_AWS_REFUSALS: Final = frozenset(
    {"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH"}
)
_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_MAY_PASS: Final = frozenset({408, 425, 429})


class BucketSource:
    """Files of a bucket of S3 or Google Cloud Storage."""

    def __init__(self, place: Place, filesystem: fs.FileSystem) -> None:
        self._place = place
        self._filesystem = filesystem
        self._top = self._path(*place.folder)
        is_one = place.segments and not (place.is_pattern or place.is_folder)
        self._is_file = bool(is_one) and self._type() == fs.FileType.File

    def list(self) -> Sequence[str]:
        """Return the place's files: their paths below its folder, sorted."""
        if self._is_file:
            return [self._place.segments[-1]]
        try:
            return _chosen(self._place, self._below())
        except OSError as error:
            raise _failed("the folder", error) from error

    def open(self, name: str) -> "OpenFile":
        """Open one of them."""
        path = self._path(*self._place.folder, *(() if self._is_file else name.split("/")))
        return OpenFile(name, path, self._filesystem)

    def close(self) -> None:
        """Nothing is held."""

    def _path(self, *segments: str) -> str:
        return "/".join((self._place.host, *segments))

    def _type(self) -> fs.FileType:
        try:
            return self._filesystem.get_file_info(self._top).type
        except OSError as error:
            raise _failed(self._place.segments[-1], error) from error

    def _below(self) -> Iterable[Sequence[str]]:
        selector = fs.FileSelector(self._top, recursive=True, allow_not_found=True)
        for info in self._filesystem.get_file_info(selector):
            if info.type == fs.FileType.File:
                yield info.path[len(self._top) + 1 :].split("/")


class FolderSource(BucketSource):
    """Files of this machine."""

    def __init__(self, place: Place, prefix: Place) -> None:
        """Look at the place."""
        self._prefix = _real(Path("/", *prefix.segments))
        super().__init__(place, fs.LocalFileSystem())
        kind, name = self._type(), self._top.rpartition("/")[2]
        if kind not in (fs.FileType.File, fs.FileType.Directory):
            raise ImportFailedError(f"{name}: it is neither a file nor a folder")
        if kind == fs.FileType.File and not self._is_file:
            raise ImportFailedError(f"{name}: it is a file, not a folder")

    def _path(self, *segments: str) -> str:
        """Return where a path leads, which must be under the prefix."""
        path = Path("/", *segments)
        real = _real(path)
        if not real.is_relative_to(self._prefix):
            raise ImportFailedError(f"{path.name}: it is a link out of what may be imported")
        return str(real)

    def _below(self) -> Iterable[Sequence[str]]:
        """Yield the path of each file; a link to a folder is refused, not followed."""

        def fail(error: OSError) -> None:
            raise error

        for folder, below, names in os.walk(self._top, onerror=fail):
            here = Path(folder)
            below[:] = sorted(filter(_is_shown, below))
            for name in below:
                if (here / name).is_symlink():
                    raise ImportFailedError(f"{name}: it is a link to a folder: import that folder")
            for name in filter(_is_shown, names):
                yield (*here.relative_to(self._top).parts, name)


class OpenFile:
    """An open file of a file system; ``version`` is another when its content is."""

    def __init__(self, name: str, path: str, filesystem: fs.FileSystem) -> None:
        self._name = name
        self._path = path
        self._filesystem = filesystem
        try:
            info = filesystem.get_file_info(path)
            if info.type == fs.FileType.NotFound:
                raise ImportFailedError(f"{name}: it does not exist")
            if info.type != fs.FileType.File:
                raise ImportFailedError(f"{name}: it is not a file")
            self._file = filesystem.open_input_file(path)
        except OSError as error:
            raise _failed(name, error) from error
        self.size = int(info.size)
        self.version = _version(info)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes."""
        try:
            content: bytes = self._file.read_at(size, offset)
        except OSError as error:
            raise _failed(self._name, error) from error
        if len(content) != size:
            raise SourceUnavailableError(f"{self._name}: it was changed while it was read")
        return content

    def require_same(self) -> None:
        """Check that it still is what was opened; else raise ``SourceUnavailableError``."""
        try:
            same = _version(self._filesystem.get_file_info(self._path)) == self.version
        except OSError as error:
            raise _failed(self._name, error) from error
        if not same:
            raise SourceUnavailableError(f"{self._name}: it was changed while it was read")

    def close(self) -> None:
        """Release it; safe to repeat."""
        self._file.close()


class HttpsSource:
    """One file of an https server that serves ranges; redirects are not followed.

    The host is the operator's, and only its own certificate is accepted, so its name cannot lead
    elsewhere. Proxies and passwords of the environment are not used.
    """

    def __init__(self, place: Place, *, ca_file: Path | None) -> None:
        self._name = place.segments[-1]
        path = "/".join(quote(segment, safe="") for segment in place.segments)
        self._url = f"https://{place.host}/{path}"
        context = httpx.create_ssl_context(trust_env=False)
        if ca_file is not None:
            trust(context, ca_file)
        self._client = httpx.Client(
            follow_redirects=False,
            trust_env=False,
            timeout=_TIMEOUT_S,
            verify=context,
            headers={"Accept-Encoding": "identity", "User-Agent": "Expunge"},
        )

    def list(self) -> Sequence[str]:
        """Return the one file."""
        return [self._name]

    def open(self, name: str) -> "HttpsFile":
        """Look at the file."""
        if name != self._name:
            raise ImportFailedError(f"{name}: it does not exist")
        return HttpsFile(name, self._url, self._client)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class HttpsFile:
    """See ``OpenFile``."""

    def __init__(self, name: str, url: str, client: httpx.Client) -> None:
        self._name = name
        self._url = url
        self._client = client
        self._condition: dict[str, str] = {}
        headers, _ = self._fetch(0, 1)
        match = _RANGE.fullmatch(headers.get("Content-Range", ""))
        if match is None:
            raise ImportFailedError(f"{name}: the server does not say how long it is")
        self.size = int(match[3])
        tag, moment = headers.get("ETag", ""), headers.get("Last-Modified", "")
        if tag and not tag.startswith("W/"):
            self._condition = {"If-Match": tag}
        elif moment:
            self._condition = {"If-Unmodified-Since": moment}
        else:
            raise ImportFailedError(
                f"{name}: the server gives it neither an ETag nor a Last-Modified, so it cannot be "
                "known whether it changes while it is read"
            )
        self.version = f"{self.size}-{tag or moment}"

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes."""
        for _ in range(_ATTEMPTS - 1):  # a connection that breaks is opened again
            try:
                return self._fetch(offset, size)[1]
            except SourceUnavailableError:
                continue
        return self._fetch(offset, size)[1]

    def require_same(self) -> None:
        """Check that it still is what was opened."""
        self._fetch(0, 1)

    def close(self) -> None:
        """Nothing is held."""

    def _fetch(self, offset: int, size: int) -> tuple[httpx.Headers, bytes]:
        sent = {"Range": f"bytes={offset}-{offset + size - 1}", **self._condition}
        content = bytearray()
        try:
            with self._client.stream("GET", self._url, headers=sent) as answer:
                self._require_range(answer, offset, size)
                for part in answer.iter_raw():
                    content += part
                    if len(content) > size:
                        break
        except httpx.TransportError as error:
            raise SourceUnavailableError(f"{self._name}: {type(error).__name__}") from error
        if len(content) != size:
            raise SourceUnavailableError(f"{self._name}: the answer is not as long as announced")
        return answer.headers, bytes(content)

    def _require_range(self, answer: httpx.Response, offset: int, size: int) -> None:
        status = answer.status_code
        if 300 <= status < 400:
            raise ImportFailedError(f"{self._name}: the server redirects, which is not followed")
        if status == 412:
            raise SourceUnavailableError(f"{self._name}: it was changed while it was read")
        if status >= 500 or status in _MAY_PASS:
            raise SourceUnavailableError(f"{self._name}: the server answered {status}")
        if status == 200:
            raise ImportFailedError(f"{self._name}: the server does not serve ranges")
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        is_it = match is not None and (int(match[1]), int(match[2])) == (offset, offset + size - 1)
        if status != 206 or not is_it:
            raise ImportFailedError(f"{self._name}: the server answered {status}")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise ImportFailedError(f"{self._name}: the server sends it in another encoding")


Source = BucketSource | HttpsSource
SourceFileReader = OpenFile | HttpsFile


def source_of(place: Place, settings: Settings) -> Source:
    """Return the source of a place.

    Raises:
        PlaceNotAllowedError: it lies under none of the operator's prefixes.
        ImportFailedError, SourceUnavailableError: it cannot be reached.
    """
    prefix = require_importable(place, settings.import_prefixes)
    if place.scheme == "file":
        return FolderSource(place, prefix)
    if place.scheme == "https":
        return HttpsSource(place, ca_file=settings.ca_file)
    return BucketSource(place, fs.GcsFileSystem() if place.scheme == "gs" else _s3(settings))


def _s3(settings: Settings) -> fs.S3FileSystem:
    options: dict[str, Any] = {}
    if settings.import_s3_endpoint is not None:
        kind, _, address = settings.import_s3_endpoint.rpartition("://")
        options |= {"endpoint_override": address.rstrip("/"), "scheme": kind or "https"}
    if settings.import_s3_access_key is not None and settings.import_s3_secret_key is not None:
        options["access_key"] = settings.import_s3_access_key.get_secret_value()
        options["secret_key"] = settings.import_s3_secret_key.get_secret_value()
    return fs.S3FileSystem(
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_TIMEOUT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        **options,
    )


def _chosen(place: Place, paths: Iterable[Sequence[str]]) -> list[str]:
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


def _is_shown(name: str) -> bool:
    return not name.startswith((".", "_")) and name.isprintable()


def _real(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except OSError as error:
        raise _failed(path.name, error) from error
    except RuntimeError as error:
        raise ImportFailedError(f"{path.name}: it is a link that leads to itself") from error


def _version(info: fs.FileInfo) -> str:
    return f"{info.size}-{info.mtime_ns}"


def _failed(name: str, error: OSError) -> Exception:
    """Say what went wrong without the library's message, which holds requests."""
    match = _AWS_CODE.search(str(error))
    code = match[1] if match is not None else type(error).__name__
    if match is None and error.errno:
        code = os.strerror(error.errno)
    denied = isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError)
    if denied or code in _AWS_REFUSALS:
        return ImportFailedError(f"{name}: {code}")
    return SourceUnavailableError(f"{name}: {code}")
