"""Downloads that resume, and that get their name only once the certificate holds.

The plan, for one version, whose number, size and digest the service announced:

1. continue the partial file, if there is one, by a range under ``If-Range``
2. repeat that while connections break or a proxy is overloaded, as long as bytes arrive
3. compare the digest
4. verify the certificate, offline, with the operator's trusted keys, that it names this version,
   and that the log has only grown since the last download
5. write the certificate, then rename the partial file into place

A partial file whose content turns out wrong, or whose version is gone, is removed.

With its first bundle a client pins the log: each later bundle must prove that its log has only
grown since. This reveals any other log, even one that was made with a stolen key.
"""

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import httpx

from app.client.answers import ApiError, Json, error_of
from app.domain.errors import DownloadError, NoteError, VerificationError
from app.domain.release import certificate_filename, weights_filename
from app.evidence.certificates.note import MAX_NOTE_BYTES, size_of
from app.runtime.outgoing import asks_for_patience

if TYPE_CHECKING:
    from app.client.client import ExpungeClient
    from app.evidence.certificates.verification import VerifiedStep

_CHECKPOINT_FILENAME = "log.checkpoint"
_TRIES_WITHOUT_PROGRESS = 4
_RETRY_WAIT_S = 0.5
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)", re.ASCII)


@dataclass(frozen=True)
class Announced:
    """What the service says of a version before its download."""

    model: str
    number: int
    sha256: str
    size: int

    @classmethod
    def from_answer(cls, model: str, answer: Mapping[str, Any]) -> "Announced":
        """Read the service's answer, or raise ``DownloadError``."""
        try:
            version = cls(
                model, int(answer["number"]), str(answer["sha256"]), int(answer["size_bytes"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DownloadError("the service does not say what to download") from error
        if not _DIGEST.fullmatch(version.sha256):
            raise DownloadError("the service announces no SHA-256 digest")
        return version

    @property
    def path(self) -> str:
        """The immutable place of its weights."""
        return f"/v1/models/{self.model}/versions/{self.number}/weights"

    @property
    def etag(self) -> str:
        """The strong entity tag of its weights."""
        return f'"{self.sha256}"'


@dataclass(frozen=True)
class Downloaded:
    """Two verified files."""

    weights: Path
    certificate: Path


@dataclass(frozen=True)
class KeptCheckpoint:
    """What is known of a log from earlier downloads; before the first, only the path."""

    path: Path
    note: bytes | None
    size: int | None

    def replace(self, note: str) -> None:
        """Keep a newer checkpoint, which was verified against this one."""
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(note, encoding="utf-8")
        new.replace(self.path)


def download(
    client: "ExpungeClient",
    name: str,
    directory: str | Path,
    *,
    trusted: bytes | str | Path,
    kept: Path | None,
    number: int | None,
    report: "Callable[[VerifiedStep], None]",
) -> Downloaded:
    """Download a version's weights and certificate, and verify them.

    A download that was interrupted is continued; partial files of versions that are no longer
    current are removed. The weights get their name only once the certificate holds.

    Args:
        client: of the service.
        name: the model.
        directory: where the files go; it is made if it is missing.
        trusted: the operator's ``trusted-keys.json``, or its content, not received from this
            service.
        kept: where the log's newest checkpoint is kept from one download to the next; a file in
            ``directory`` if not given. The log must have only grown since.
        number: the version; the current certified one if not given.
        report: called with each step of the verification that passed.

    Raises:
        ApiError: the service refuses; 410 for a version that was retired.
        DownloadError: interrupted, or not what was announced; the message says what to do.
        VerificationError: the certificate does not hold.
    """
    keys = trusted if isinstance(trusted, bytes) else Path(trusted).read_bytes()
    version = Announced.from_answer(name, _version(client, name, number))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if number is None:
        partial = re.compile(re.escape(name) + r"-v(\d+)\.safetensors\.part", re.ASCII)
        for path in directory.iterdir():
            match = partial.fullmatch(path.name)
            if match is not None and int(match[1]) != version.number:
                path.unlink()  # of a version that is gone
    target = directory / weights_filename(version.model, version.number)
    part = fetch(client.http, version, target)
    with _kept_checkpoint(kept or directory / _CHECKPOINT_FILENAME) as checkpoint:
        bundle = _bundle_since(client, version, checkpoint)
        files = certify(
            version,
            part,
            target,
            bundle=bundle_bytes(bundle),
            trusted=keys,
            consistent_with=checkpoint.note,
            report=report,
        )
        checkpoint.replace(str(bundle["log"]["checkpoint"]))
    return files


def fetch(
    http: httpx.Client,
    version: Announced,
    target: Path,
    *,
    wait_s: float = _RETRY_WAIT_S,
) -> Path:
    """Complete the partial file beside ``target``, compare its digest, and return its path.

    Args:
        http: a client of the service.
        version: what to fetch.
        target: the name that the file will have; it is not touched.
        wait_s: pause after the first try without progress; about doubled after each further one.

    Raises:
        DownloadError: the connection keeps breaking, or the content is not what was announced.
    """
    part = target.with_name(target.name + ".part")
    with _held(part) as file:
        if file.seek(0, os.SEEK_END) > version.size:
            file.truncate(0)
        tries = 0
        while (have := file.seek(0, os.SEEK_END)) < version.size:
            refusal: Exception | None = None
            with suppress(httpx.TransportError):
                refusal = _continue(http, version, file, part)
            tries = 0 if file.tell() > have else tries + 1
            if tries == _TRIES_WITHOUT_PROGRESS:
                why = "" if refusal is None else f" ({refusal})"
                raise DownloadError(
                    f"interrupted after {file.tell()} of {version.size} bytes{why}; they are kept, "
                    "run the command again to continue"
                ) from refusal
            time.sleep(wait_s * (2**tries - 1))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        if digest != version.sha256:
            part.unlink()
            raise DownloadError("the content does not have the announced digest; it was removed")
    return part


def certify(
    version: Announced,
    part: Path,
    target: Path,
    *,
    bundle: bytes,
    trusted: bytes,
    consistent_with: bytes | None = None,
    report: "Callable[[VerifiedStep], None]" = lambda _: None,
) -> Downloaded:
    """Verify a complete partial file's certificate, then give both files their names.

    Raises:
        VerificationError: the certificate does not hold, or is another version's. The partial file
            stays, so that another key can be tried, but does not get its name.
    """
    # Half a second of imports that no other command over HTTP needs.
    from app.evidence.certificates import verification  # noqa: PLC0415

    predicate = verification.verify(
        bundle=bundle,
        weights=part,
        trusted=trusted,
        consistent_with=consistent_with,
        report=report,
    )
    if predicate.get("model") != {"name": version.model, "version": version.number}:
        raise VerificationError("subject", "the certificate names another model or version")
    report(verification.VerifiedStep("subject", f"version {version.number} of {version.model}"))
    certificate = target.with_name(certificate_filename(version.model, version.number))
    certificate.write_bytes(bundle)
    part.replace(target)
    return Downloaded(target, certificate)


def bundle_bytes(bundle: Mapping[str, Any]) -> bytes:
    """Return a bundle as the text of its file."""
    return json.dumps(dict(bundle), indent=1).encode()


def _bundle_since(client: "ExpungeClient", version: Announced, checkpoint: KeptCheckpoint) -> Json:
    try:
        return client.version_bundle(version.model, version.number, since=checkpoint.size)
    except ApiError as error:
        if checkpoint.size is None or error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        raise VerificationError(
            "history", f"the log is shorter than the one known from {checkpoint.path}"
        ) from error


def _version(client: "ExpungeClient", name: str, number: int | None) -> Json:
    if number is None:
        return client.certified(name)
    for version in client.versions(name):
        if version["number"] == number:
            return version
    raise DownloadError(f"model {name!r} has released no version {number}")


@contextmanager
def _kept_checkpoint(path: Path) -> Iterator[KeptCheckpoint]:
    """Read what is kept; other downloads that use the same file wait meanwhile.

    Raises:
        DownloadError: the file holds no checkpoint.
    """
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        try:
            note = path.read_bytes()[: MAX_NOTE_BYTES + 1]
        except FileNotFoundError:
            yield KeptCheckpoint(path, None, None)
            return
        try:
            size = size_of(note)
        except NoteError as error:
            raise DownloadError(f"{path} holds no checkpoint of a log") from error
        yield KeptCheckpoint(path, note, size)
    finally:
        os.close(directory)


@contextmanager
def _held(part: Path) -> Iterator[BinaryIO]:
    """Open the partial file, locked for this process."""
    with part.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DownloadError(f"another download is writing {part.name}") from error
        yield file


def _continue(
    http: httpx.Client,
    version: Announced,
    file: BinaryIO,
    part: Path,
) -> Exception | None:
    """Request the missing part and append it; return an answer that asked to come back later."""
    have = file.tell()
    headers = {"Accept-Encoding": "identity", "If-Match": version.etag}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": version.etag}
    with http.stream("GET", version.path, headers=headers, follow_redirects=True) as answer:
        if asks_for_patience(answer):
            answer.read()
            return error_of(answer)
        if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            answer.read()
            if answer.status_code == HTTPStatus.GONE:
                part.unlink()
            if answer.status_code != HTTPStatus.PRECONDITION_FAILED:
                raise error_of(answer)
        if answer.headers.get("etag") != version.etag:
            part.unlink()
            raise DownloadError("the service has other content than it announced; it was removed")
        if answer.status_code == HTTPStatus.OK:  # the whole file, whatever range was requested
            file.truncate(0)
        else:
            _check_range(answer, have, version.size)
        for chunk in answer.iter_raw():
            file.write(chunk)
            if file.tell() > version.size:
                part.unlink()
                raise DownloadError("the service sends more than it announced; it was removed")
    return None


def _check_range(answer: httpx.Response, have: int, size: int) -> None:
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    if match is None or (int(match[1]), int(match[3])) != (have, size):
        raise DownloadError("the service sends another range than was asked for")
