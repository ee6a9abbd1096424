"""HTML forms with protection against cross-site request forgery.

A form carries a token that only pages rendered for the same cookie contain. In addition, the
browser must not report another origin.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request

from app.domain.errors import ExpungeError, InvalidInputError, PayloadTooLargeError

TOKEN_FIELD = "token"  # noqa: S105 - a field's name
_MAX_BYTES = 8192
_MAX_FIELDS = 16
_MEDIA_TYPE = "application/x-www-form-urlencoded"
_OWN = ("same-origin", "none")


class ForeignFormError(ExpungeError):
    """A form that was not sent from a page of this session."""


async def read_form(request: Request) -> Mapping[str, str]:
    """Return a posted form's fields.

    Raises:
        InvalidInputError: the body is not a form.
        PayloadTooLargeError: it is larger than any of ours.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != _MEDIA_TYPE:
        raise InvalidInputError("the body must be an HTML form")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise PayloadTooLargeError("the form is too large")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise InvalidInputError("the body is not a valid HTML form") from error
    return dict(fields)


Form = Annotated[Mapping[str, str], Depends(read_form)]


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
