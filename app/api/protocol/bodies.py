"""Bodies: limits on their size, coding and media type, and JSON that is checked beforehand.

FastAPI would parse and validate JSON in the event loop, and describe each of a million errors.
"""

import json
import re
from collections.abc import Callable
from io import BytesIO
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.protocol.errors import MAX_LISTED, BodyError, problem_of
from app.domain.errors import (
    InvalidInputError,
    PayloadTooLargeError,
    UnreadableError,
    UnsupportedMediaTypeError,
)
from app.domain.strict_json import RepeatedFieldError, distinct_fields
from app.runtime.settings import Settings

LARGE_BYTES = 256 * 1024
MOST_VALUES = 250_000
"""Above the size of the largest forget request."""

_STRING = re.compile('"[^"]*"')
_JSON_METHODS = ("POST", "PATCH")
_BODY_METHODS = (*_JSON_METHODS, "PUT")
_FILES_AT_ONCE = 2
_WITH_IDS = re.compile(
    "/v1/forget-requests(/preview)?|/opendsr/v2/requests|/requests(/preview|/[^/]+/receipt)?"
)


class Bodies:
    """Rejects compressed bodies (415), and too large ones (413): PUT takes files, others JSON.

    All bodies in memory together are limited to twice the largest file; beyond that, 503.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on allowed requests; bodies without an announced length are limited as well."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        codings = ",".join(headers.getlist("content-encoding")).lower().replace(" ", "").split(",")
        if _is_sent(headers) and not {"", "identity"}.issuperset(codings):
            refused = problem_of(
                UnsupportedMediaTypeError("send the body as it is, not compressed")
            )
            refused.headers["Accept-Encoding"] = "identity"
            await refused(scope, receive, send)
            return
        has_body = scope["method"] in _BODY_METHODS
        setting = "max_json_bytes"
        if scope["method"] == "PUT":
            setting = "max_upload_bytes"
        elif _WITH_IDS.fullmatch(scope["path"].rstrip("/")):
            setting = "max_ids_bytes"
        limit = getattr(self._settings, setting)
        refusal = f"the body is larger than {limit} bytes, this service's EXPUNGE_{setting.upper()}"
        if setting != "max_json_bytes":
            refusal += "; send it in parts"
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > limit:
            await problem_of(PayloadTooLargeError(refusal))(scope, receive, send)
            return
        limited = _Limited(receive, limit, refusal, self._hold, has_body=has_body)
        try:
            await self._app(scope, limited, send)
        finally:
            self._held_bytes -= limited.size

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        largest = max(self._settings.max_upload_bytes, self._settings.max_json_bytes)
        if self._held_bytes > _FILES_AT_ONCE * largest:
            detail = "the service holds as many bytes of uploads as it can at once"
            raise HTTPException(503, detail, {"Retry-After": "5"})


def _is_sent(headers: Headers) -> bool:
    """Return whether a request has a body."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


class _Limited:
    """Receives a body and stops at the limit."""

    def __init__(
        self,
        receive: Receive,
        limit: int,
        refusal: str,
        hold: Callable[[int], None],
        *,
        has_body: bool,
    ) -> None:
        self._is_awaited = has_body
        self._receive = receive
        self._limit, self._refusal = limit, refusal
        self._hold = hold
        self.size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and self._is_awaited:
            raise HTTPException(400, "the body ended early")
        self._is_awaited = self._is_awaited and message.get("more_body", False)
        size = len(message.get("body", b""))
        self.size += size
        # Of the errors raised while it reads a body, FastAPI passes on only these.
        self._hold(size)
        if self.size > self._limit:
            raise HTTPException(413, self._refusal)
        return message


async def whole_body(request: Request) -> bytes:
    """Return a request's body, as often as it is asked for."""
    if not hasattr(request, "_body"):
        # ``request.body`` joins all chunks at once and blocks the event loop.
        content = BytesIO()
        async for chunk in request.stream():
            content.write(chunk)
        request._body = content.getvalue()  # noqa: SLF001
    return request._body  # noqa: SLF001


RawBody = Annotated[bytes, Depends(whole_body)]
"""The raw body; ``Bodies`` limits its size."""


def file_body(media_type: str) -> dict[str, Any]:
    """Return the OpenAPI entry of a body that is a file."""
    content = {media_type: {"schema": {"type": "string", "format": "binary"}}}
    return {"requestBody": {"required": True, "content": content}}


async def require_media_type(request: Request) -> None:
    """Reject a body with a media type that an existing operation does not take.

    Raises:
        UnsupportedMediaTypeError: the message says what to send.
    """
    headers = request.headers
    if not _is_sent(headers):
        return
    if request.method in _JSON_METHODS and not is_json(request):
        raise UnsupportedMediaTypeError("send the body as application/json")
    is_form = headers.get("content-type", "").strip().lower().startswith("multipart/")
    if request.method == "PUT" and (is_json(request) or is_form):
        raise UnsupportedMediaTypeError("send the file itself as the body")


def is_json(request: Request) -> bool:
    """Return whether a body is declared as JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


class CheckedRequest(Request):
    """A request whose JSON body is already the endpoint's model."""

    def __init__(self, request: Request, content: bytes, checked: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._body = content
        self._checked = checked

    async def json(self) -> BaseModel:
        """Return the body, a model, which FastAPI accepts as it is."""
        return self._checked


async def read_body(request: Request, model: type[BaseModel]) -> Request:
    """Return a request with its JSON body validated; one without such a body unchanged.

    Raises:
        UnreadableError: it is not UTF-8, is nested too deeply, has a number that is too long, or an
            object that names a field twice.
        InvalidInputError: it is not JSON, or holds too many values.
        BodyError: it does not match the endpoint's model.
    """
    if not is_json(request):
        return request
    try:
        content = await request.body()
    except ClientDisconnect as error:
        raise HTTPException(400, "the body is incomplete") from error
    if not content:
        return request
    if len(content) <= LARGE_BYTES:
        checked = _checked(content, model)
    else:
        checked = await run_in_threadpool(_checked, content, model)
    return CheckedRequest(request, content, checked)


def _checked(content: bytes, model: type[BaseModel]) -> BaseModel:
    """Return a body as a model; many unknown top-level members are only counted."""
    document = _document(content)
    unknown = 0
    if isinstance(document, dict):
        known = {name: value for name, value in document.items() if name in model.model_fields}
        foreign = [name for name in document if name not in known]
        unknown = max(0, len(foreign) - MAX_LISTED)
        document = known | dict.fromkeys(foreign[:MAX_LISTED])
    try:
        return model.model_validate(document)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise BodyError(
            [{**fault, "loc": ("body", *fault["loc"])} for fault in faults[:MAX_LISTED]],
            error.error_count() + unknown,
        ) from None


def _document(content: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError("the body is not UTF-8") from error
    if not _is_small(text):
        raise InvalidInputError(f"body: more than {MOST_VALUES} values")
    try:
        return json.loads(text, object_pairs_hook=distinct_fields)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"body: {error.msg} at character {error.pos}") from None
    except RepeatedFieldError as error:
        raise UnreadableError("an object of the body names a field twice") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError("the body cannot be read as JSON") from error


def _is_small(text: str) -> bool:
    """Return whether JSON has few values, counted first: parsing millions stops all threads."""
    if _most_values_in(text) <= MOST_VALUES:
        return True
    text = text.replace("\\\\", "").replace('\\"', "")
    if text.count('"') > 4 * MOST_VALUES:  # two for each name and text
        return False
    return _most_values_in(_STRING.sub("", text)) <= MOST_VALUES


def _most_values_in(text: str) -> int:
    return 1 + text.count(",") + text.count("[") + text.count("{")
