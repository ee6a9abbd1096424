"""Entity tags of JSON answers: content that the caller already has is not sent again."""

import hashlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.protocol.conditions import is_not_modified
from app.api.protocol.errors import problem_of
from app.domain.errors import PreconditionError

_DIGITS = 32
_BODY_HEADERS = (b"content-length", b"content-type")


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
