"""HTML forms with protection against cross-site request forgery.

A form carries a token that only pages rendered for the same cookie contain. In addition, the
browser must not report another origin.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from email.message import Message
from email.parser import BytesFeedParser
from email.policy import HTTP
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request

from app.domain.errors import ExpungeError, InvalidInputError, PayloadTooLargeError

TOKEN_FIELD = "token"  # noqa: S105 - a field's name
_MAX_BYTES = 32_768
_MAX_FILE_BYTES = 4 << 20
_MAX_FIELDS = 64
_MEDIA_TYPE = "application/x-www-form-urlencoded"
_WITH_FILES = "multipart/form-data"
_OWN = ("same-origin", "none")


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
            if kind == _WITH_FILES:
                return _parts(media_type, bytes(body))
            text = body.decode()
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
        except (ValueError, LookupError) as error:
            raise InvalidInputError("the body is not a valid HTML form in UTF-8") from error

    return read


def _parts(media_type: str, body: bytes) -> dict[str, str]:
    """Return the fields of a form with files; a file is a field with its text (RFC 7578)."""
    parser = BytesFeedParser(policy=HTTP)
    parser.feed(f"Content-Type: {media_type}\r\n\r\n".encode() + body)
    parts = parser.close().get_payload()
    if not isinstance(parts, list) or len(parts) > _MAX_FIELDS:
        raise ValueError("no parts, or too many")
    return dict(map(_field, parts))


def _field(part: Message) -> tuple[str, str]:
    name = part.get_param("name", header="content-disposition")
    content = part.get_payload(decode=True)
    if isinstance(name, str) and isinstance(content, bytes):
        return name, content.decode("utf-8-sig")
    raise ValueError("a part without a name or a content")


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
