"""What a request's body may be: its size and its media type, before anything reads it."""

from io import BytesIO
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import problem_of
from app.api.reading import is_json
from app.domain.errors import ExpungeError, PayloadTooLargeError, UnsupportedMediaTypeError
from app.settings import Settings

_JSON_METHODS = ("POST", "PATCH")
_WITH_IDS = ("/v1/forget-requests", "/opendsr/v2/requests")


class Bodies:
    """Refuses bodies that are too large (413): PUT takes files; POST and PATCH take JSON."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may be read; the limit also holds for bodies of unannounced length."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limited = _Limited(receive, self._limit(scope))
        try:
            limited.expect(Headers(scope=scope).get("content-length"))
        except ExpungeError as error:
            await problem_of(error)(scope, receive, send)
            return
        await self._app(scope, limited, send)

    def _limit(self, scope: Scope) -> int:
        if scope["method"] == "PUT":
            return self._settings.max_upload_bytes
        if scope["path"].rstrip("/") in _WITH_IDS:
            return self._settings.max_ids_bytes
        return self._settings.max_json_bytes


class _Limited:
    """Receives a body, and stops where the limit is passed."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._size = 0

    def expect(self, announced: str | None) -> None:
        if announced is not None and announced.isdecimal() and int(announced) > self._limit:
            raise self._too_large()

    async def __call__(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            # FastAPI passes on no other error that occurs while it reads a body.
            raise HTTPException(413, str(self._too_large()))
        return message

    def _too_large(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(
            f"the body is larger than {self._limit} bytes; send it in parts"
        )


async def _raw_body(request: Request) -> bytes:
    # Not ``request.body``: it joins all chunks at once, for which everybody else would wait.
    content = BytesIO()
    async for chunk in request.stream():
        content.write(chunk)
    return content.getvalue()


RawBody = Annotated[bytes, Depends(_raw_body)]
"""A body as it came; ``Bodies`` has it end in time."""


async def require_media_type(request: Request) -> None:
    """Refuse a body that is not of the kind that the method takes; for operations that exist.

    Raises:
        UnsupportedMediaTypeError: the message says what to send.
    """
    headers = request.headers
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if not has_body:
        return
    if request.method in _JSON_METHODS and not is_json(request):
        raise UnsupportedMediaTypeError("send the body as application/json")
    is_form = headers.get("content-type", "").strip().lower().startswith("multipart/")
    if request.method == "PUT" and (is_json(request) or is_form):
        raise UnsupportedMediaTypeError("send the file itself as the body")
