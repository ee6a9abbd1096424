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
from starlette.concurrency import run_in_threadpool

from app.domain.errors import ExpungeError, InvalidInputError

TOKEN_FIELD = "token"  # noqa: S105 - a field's name
_MAX_FIELDS = 64
_MEDIA_TYPE = "application/x-www-form-urlencoded"
_OWN = ("same-origin", "none")


class ForeignFormError(ExpungeError):
    """A form that was not sent from a page of this session."""


async def read_form(request: Request) -> Mapping[str, str]:
    """Return a posted form's fields, or raise ``InvalidInputError``; ``Bodies`` limits its size."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != _MEDIA_TYPE:
        raise InvalidInputError("the body must be an HTML form")
    body = await request.body()
    try:
        return await run_in_threadpool(_fields, body)
    except ValueError as error:
        raise InvalidInputError("the body is not a valid HTML form in UTF-8") from error


def _fields(body: bytes) -> dict[str, str]:
    pairs = parse_qsl(
        body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
    )
    return dict(pairs)


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
