"""Entity tags, conditions and ranges, RFC 9110 sections 8.8, 13 and 14; downloads that follow them.

Each resource has one representation with a strong entity tag and no modification date. So dates in
conditions never match, and conditions with dates only are ignored, as the standard demands.
"""

import base64
import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.protocol.errors import problem_of
from app.domain.errors import (
    CorruptObjectError,
    GoneError,
    KeyServiceError,
    KeyStoreError,
    ObjectStoreError,
    PreconditionError,
    RangeError,
)
from app.storage.blobs import BlobRange, Blobs

_DIGITS = 32
_BODY_HEADERS = (b"content-length", b"content-type")

_ONE_RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", re.ASCII | re.IGNORECASE)
_TAG = re.compile(r'(?:W/)?"[^"]*"')


IfMatch = Annotated[
    str | None,
    Header(description="The ETag of the caller's copy: 412 if the resource has changed"),
]


@dataclass(frozen=True)
class Part:
    """The bytes to send: ``start`` up to, not including, ``stop``."""

    start: int
    stop: int
    size: int

    @property
    def is_whole(self) -> bool:
        """Return whether this is the whole content."""
        return self.stop - self.start == self.size

    @property
    def content_range(self) -> str:
        """The value of ``Content-Range``."""
        return f"bytes {self.start}-{self.stop - 1}/{self.size}"


def is_not_modified(headers: Mapping[str, str], etag: str) -> bool:
    """Return whether the caller's copy is current, so that the answer is 304.

    Raises:
        PreconditionError: ``If-Match`` names another representation.
    """
    require_match(headers.get("if-match"), etag)
    if_none_match = headers.get("if-none-match")
    return if_none_match is not None and names(if_none_match, etag, weak=True)


def require_match(if_match: str | None, etag: str) -> None:
    """Raise ``PreconditionError`` if ``If-Match`` names another representation."""
    if if_match is not None and not names(if_match, etag, weak=False):
        raise PreconditionError("this is not the content that If-Match names")


def requested_part(headers: Mapping[str, str], etag: str, size: int) -> Part:
    """Return the requested part.

    Several ranges, an unknown unit, an invalid range or a range of another representation
    (``If-Range``) yield the whole content, as the standard allows.

    Raises:
        RangeError: the range begins after the end.
    """
    whole = Part(0, size, size)
    match = _ONE_RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or headers.get("if-range", etag).strip() != etag:
        return whole
    first, last = match.groups()
    if not first and not last:
        return whole
    if not first:
        start, stop = max(0, size - _number(last)), size
    else:
        start, stop = _number(first), min(size, _number(last) + 1) if last else size
        if last and _number(last) < start:
            return whole
    if start >= stop:
        raise RangeError(size)
    return Part(start, stop, size)


def _number(digits: str) -> int:
    """Parse a number; a very long one is cut, so that parsing it is cheap."""
    return int(digits.lstrip("0")[:20] or "0")


def names(header: str, etag: str, *, weak: bool) -> bool:
    """Return whether a condition names an entity tag; ``weak`` ignores ``W/``."""
    if header.strip() == "*":
        return True
    tags = _TAG.findall(header)
    return etag in ([tag.removeprefix("W/") for tag in tags] if weak else tags)


def etag_of(content: bytes) -> str:
    """Return the strong entity tag of a body: equal bytes, equal tags."""
    return f'"{hashlib.sha256(content).hexdigest()[:_DIGITS]}"'


class EntityTags:
    """Adds an entity tag to every JSON answer to GET; answers 304 if the caller has it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process the answer; one that is not JSON or already has a tag passes unchanged."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        answer = _Tagged(scope, receive, send)
        await self._app(scope, receive, answer.take)


class _Tagged:
    """Buffers one answer until its body is complete."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._start: Message | None = None
        self._body: list[bytes] = []

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _wants_tag(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._finish(self._start, b"".join(self._body))

    async def _finish(self, start: Message, body: bytes) -> None:
        etag = etag_of(body)
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["ETag"] = etag
        headers.setdefault("Cache-Control", "private, no-cache")
        start = {**start, "headers": headers.raw}
        try:
            if is_not_modified(Headers(scope=self._scope), etag):
                kept = [pair for pair in headers.raw if pair[0].lower() not in _BODY_HEADERS]
                start, body = {**start, "status": 304, "headers": kept}, b""
        except PreconditionError as error:
            await problem_of(error)(self._scope, self._receive, self._send)
            return
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _wants_tag(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    is_json = headers.get("content-type", "").partition(";")[0] == "application/json"
    return start["status"] == 200 and is_json and "etag" not in headers


_log = logging.getLogger("expunge.api")


def download(
    request: Request, blobs: Blobs, *, blob_id: str, sha256: str, size: int, filename: str
) -> Response:
    """Answer GET or HEAD with a stored object or the requested range of it.

    Caches must revalidate their copies each time: a version can be retired at any moment, and a
    cache would otherwise keep serving its weights. The digest ``sha256`` is also the entity tag;
    ``filename`` is plain ASCII without quotes.

    Raises:
        GoneError: the object was shredded.
        CorruptObjectError: the object is not what was stored.
        ObjectStoreError, KeyStoreError, KeyServiceError: it cannot be read now.
        PreconditionError: ``If-Match`` names other content.
        RangeError: the range begins after the end.
    """
    etag = f'"{sha256}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Accept-Ranges": "bytes"}
    if is_not_modified(request.headers, etag):
        return Response(status_code=304, headers=headers)
    part = requested_part(request.headers, etag, size)
    headers |= {
        "Content-Length": str(part.stop - part.start),
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f'attachment; filename="{filename}"',
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:",
    }
    status = 200 if part.is_whole else 206
    if not part.is_whole:
        headers["Content-Range"] = part.content_range
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return _Streamed(blobs.open_range(blob_id, part.start, part.stop), status, headers)


class _Streamed(StreamingResponse):
    """Sends a range in chunks; it ends without an error only if every byte was sent."""

    def __init__(self, content: BlobRange, status: int, headers: dict[str, str]) -> None:
        super().__init__(content, status_code=status, headers=headers)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response until it is complete or the client disconnects.

        If the object is shredded meanwhile or a chunk is corrupt, the response ends before its
        announced length, without any byte of that chunk. The server then closes the connection, so
        the client knows that bytes are missing.
        """
        try:
            await super().__call__(scope, receive, send)
        except GoneError:
            _log.warning("a download was aborted: its object was shredded meanwhile")
        except (CorruptObjectError, KeyServiceError, KeyStoreError, ObjectStoreError) as error:
            _log.error("a download was aborted: %s", error)
        finally:
            self._content.close()
