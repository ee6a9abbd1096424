"""HTML forms with protection against cross-site request forgery.

A form carries a token that only pages rendered for the same cookie contain. In addition, the
browser must not report another origin.
"""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from app.domain.errors import ExpungeError, InvalidInputError, PayloadTooLargeError

TOKEN_FIELD = "token"  # noqa: S105 - a field's name
_MAX_BYTES = 32_768
_MAX_FILE_BYTES = 4 << 20
_MAX_FIELDS = 64
_MEDIA_TYPE = "application/x-www-form-urlencoded"
_WITH_FILES = "multipart/form-data"
_OWN = ("same-origin", "none")
_MOST_HEADER_BYTES: Final = 1000
_BOUNDARY: Final = re.compile(r";[ ]*boundary=\"?([^\s\";]{1,70})")
_NAME: Final = re.compile(
    rb"^content-disposition: *form-data;(?:[^\r\n]*;)? *name=\"([^\r\n\"]*)\"", re.I | re.M
)


class ForeignFormError(ExpungeError):
    """A form that was not sent from a page of this session."""


def _reader(max_bytes: int) -> Callable[[Request], Awaitable[Mapping[str, str]]]:
    async def read(request: Request) -> Mapping[str, str]:
        """Return a posted form's fields.

        Raises:
            InvalidInputError: the body is not a form.
            PayloadTooLargeError: it is larger than this form may be.
        """
        media_type = request.headers.get("content-type", "")
        kind = media_type.partition(";")[0].strip()
        if kind not in (_MEDIA_TYPE, _WITH_FILES):
            raise InvalidInputError("the body must be an HTML form")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise PayloadTooLargeError(f"the form is too large: at most {max_bytes:,} bytes")
        try:
            return await run_in_threadpool(_fields, media_type, bytes(body))
        except ValueError as error:
            raise InvalidInputError("the body is not a valid HTML form in UTF-8") from error

    return read


def _fields(media_type: str, body: bytes) -> dict[str, str]:
    if media_type.startswith(_WITH_FILES):
        return _parts(media_type, body)
    return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))


def _parts(media_type: str, body: bytes) -> dict[str, str]:
    """Return the fields of a form with files; a file is a field with its text (RFC 7578).

    Parsers of e-mail take minutes for what somebody made to be slow.
    """
    found = _BOUNDARY.search(media_type)
    if found is None:
        raise ValueError("no boundary")
    delimiter = f"\r\n--{found[1]}".encode()
    _, *parts, end = (b"\r\n" + body).split(delimiter, _MAX_FIELDS + 1)
    if not end.startswith(b"--"):
        raise ValueError("no end, or too many parts")
    return dict(map(_field, parts))


def _field(part: bytes) -> tuple[str, str]:
    header, _, content = part.partition(b"\r\n\r\n")
    found = _NAME.search(header) if len(header) <= _MOST_HEADER_BYTES else None
    if found is None:
        raise ValueError("a part without a name")
    return found[1].decode(), content.decode("utf-8-sig")


read_form = _reader(_MAX_BYTES)
read_form_with_file = _reader(_MAX_FILE_BYTES)
Form = Annotated[Mapping[str, str], Depends(read_form)]
FileForm = Annotated[Mapping[str, str], Depends(read_form_with_file)]


def token_of(cookie: str) -> str:
    """Return the form token that belongs to this cookie."""
    return hmac.new(cookie.encode(), b"expunge form", hashlib.sha256).hexdigest()


def require_own(request: Request, form: Mapping[str, str], *, cookie: str) -> None:
    """Check that a form comes from a page for this cookie, or raise ``ForeignFormError``."""
    given = form.get(TOKEN_FIELD, "")
    if not cookie or not hmac.compare_digest(given.encode(), token_of(cookie).encode()):
        raise ForeignFormError("the form has expired: go back, load the page again and repeat")
    if request.headers.get("sec-fetch-site", "none") not in _OWN or not _same_origin(request):
        raise ForeignFormError("the form was sent from another site")


def _same_origin(request: Request) -> bool:
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")
