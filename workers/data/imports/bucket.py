"""Objects in buckets of S3 and Google Cloud Storage, by pyarrow's file systems."""

import re
from collections.abc import Sequence
from typing import Any, Final

from pyarrow import fs

from app.domain.errors import ImportFailedError, SourceUnavailableError
from app.domain.places import Place
from app.runtime.settings import Settings
from workers.data.imports.sources import chosen

_CODE: Final = re.compile(r"AWS Error ([A-Z_]+)")
_CONNECT_TIMEOUT_S: Final = 10
_REQUEST_TIMEOUT_S: Final = 60
_ATTEMPTS: Final = 5
_REFUSED: Final = frozenset({"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH"})


def filesystem_of(scheme: str, settings: Settings) -> fs.FileSystem:
    """Return the file system of ``s3`` or ``gs``."""
    if scheme == "gs":
        return fs.GcsFileSystem()
    options: dict[str, Any] = {}
    if settings.import_s3_endpoint is not None:
        kind, _, address = settings.import_s3_endpoint.rpartition("://")
        options |= {"endpoint_override": address.rstrip("/"), "scheme": kind or "https"}
    if settings.import_s3_access_key is not None and settings.import_s3_secret_key is not None:
        options["access_key"] = settings.import_s3_access_key.get_secret_value()
        options["secret_key"] = settings.import_s3_secret_key.get_secret_value()
    return fs.S3FileSystem(
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_REQUEST_TIMEOUT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        **options,
    )


class BucketSource:
    """See ``Source``."""

    def __init__(self, place: Place, filesystem: fs.FileSystem) -> None:
        """Look at the place."""
        self._place = place
        self._files = filesystem
        self._folder = "/".join((place.host, *place.folder))
        self._is_file = False
        if place.segments and not (place.is_pattern or place.is_folder):
            try:
                info = filesystem.get_file_info(self._folder)
            except OSError as error:
                raise _failed("the bucket", error) from error
            self._is_file = info.type == fs.FileType.File

    def list(self) -> Sequence[str]:
        """Return the files, sorted."""
        if self._is_file:
            return [self._place.segments[-1]]
        try:
            selector = fs.FileSelector(self._folder, recursive=True, allow_not_found=True)
            infos = self._files.get_file_info(selector)
        except OSError as error:
            raise _failed("the bucket", error) from error
        start = len(self._folder) + 1
        return chosen(
            self._place,
            (info.path[start:].split("/") for info in infos if info.type == fs.FileType.File),
        )

    def open(self, name: str) -> "_Object":
        """Open an object."""
        try:
            path = self._folder if self._is_file else f"{self._folder}/{name}"
            return _Object(name, path, self._files)
        except OSError as error:
            raise _failed(name, error) from error

    def close(self) -> None:
        """Nothing is held."""


class _Object:
    """See ``SourceFileReader``."""

    def __init__(self, name: str, path: str, files: fs.FileSystem) -> None:
        self._name = name
        self._path = path
        self._files = files
        info = files.get_file_info(path)
        if info.type != fs.FileType.File:
            raise ImportFailedError(f"{name}: it does not exist")
        self.size = int(info.size)
        self.version = _version(info)
        self._file = files.open_input_file(path)

    def read_at(self, offset: int, size: int) -> bytes:
        try:
            content: bytes = self._file.read_at(size, offset)
        except OSError as error:
            raise _failed(self._name, error) from error
        if len(content) != size:
            raise SourceUnavailableError(f"{self._name}: it was changed while it was read")
        return content

    def require_same(self) -> None:
        try:
            same = _version(self._files.get_file_info(self._path)) == self.version
        except OSError as error:
            raise _failed(self._name, error) from error
        if not same:
            raise SourceUnavailableError(f"{self._name}: it was changed while it was read")

    def close(self) -> None:
        self._file.close()


def _version(info: fs.FileInfo) -> str:
    return f"{info.size}-{info.mtime_ns}"


def _failed(name: str, error: OSError) -> Exception:
    """Say what went wrong without the library's message, which holds requests."""
    match = _CODE.search(str(error))
    code = match[1] if match is not None else type(error).__name__
    if isinstance(error, FileNotFoundError | PermissionError) or code in _REFUSED:
        return ImportFailedError(f"{name}: {code}")
    return SourceUnavailableError(f"{name}: {code}")
