"""Who views a page: the session's API key and its scopes; and forms that only its pages can send.

A session is a random id in a cookie, mapped to an API key in Redis. Redis holds a hash of the
session's id, the key's id, and a seal over both under a key that is not in Redis. Reading Redis
gives no access; writing to it can neither create a session nor move one to another key. If Redis is
wiped, users log in again.

A form carries a token that only pages rendered for the same cookie contain. In addition, the
browser must not report another origin.
"""

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request, Response
from redis import Redis
from starlette.concurrency import run_in_threadpool

from app.access import api_keys
from app.access.api_keys import Caller
from app.access.pseudonyms import Pseudonyms
from app.access.tables import ApiKeyRow
from app.api.protocol.access import ServicesOf, part, require_scope
from app.domain.errors import ExpungeError, InvalidInputError, UnauthenticatedError
from app.domain.states import Scope
from app.evidence.log import actor
from app.services import Services

COOKIE = "expunge-session"
_PREFIX = "expunge:session:"
_TOKEN_BYTES = 32
_SESSION = timedelta(hours=8)
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
        pairs = await run_in_threadpool(
            parse_qsl,
            body.decode(),
            keep_blank_values=True,
            max_num_fields=_MAX_FIELDS,
            errors="strict",
        )
    except ValueError as error:
        raise InvalidInputError("the body is not a valid HTML form in UTF-8") from error
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
    origin = request.headers.get("origin")
    is_ours = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    if request.headers.get("sec-fetch-site", "none") not in _OWN or not is_ours:
        raise ForeignFormError("the form was sent from another site")


@dataclass(frozen=True)
class Visitor:
    """A user who has logged in.

    Attributes:
        cookie: the session's secret.
        caller: the key and its scopes.
        name: the key's.
        path: of the page that is asked for.
    """

    cookie: str
    caller: Caller
    name: str
    path: str

    def allows(self, scope: str) -> bool:
        """Return whether the key has a scope; for templates."""
        return self.caller.allows(Scope(scope))

    @property
    def lists_names(self) -> bool:
        """Whether pages may offer names of models and datasets: the API would list them."""
        return self.caller.allows(Scope.MODELS_READ)

    @property
    def token(self) -> str:
        """The token for this session's forms."""
        return token_of(self.cookie)


@dataclass(frozen=True)
class Sessions:
    """The valid sessions."""

    redis: Redis
    pseudonyms: Pseudonyms
    lifetime: timedelta

    def start(self, key_id: str) -> str:
        """Start a session for a key; return the secret for the cookie."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        seal = self.pseudonyms.session(token, key_id).hex()
        self.redis.set(_name(token), f"{key_id} {seal}", ex=self.lifetime)
        return token

    def key_of(self, token: str) -> str | None:
        """Return the id of a session's key, or None if the session is over."""
        found = self.redis.get(_name(token))
        if not isinstance(found, bytes):
            return None
        key_id, _, seal = found.decode(errors="replace").partition(" ")
        expected = self.pseudonyms.session(token, key_id).hex()
        return key_id if hmac.compare_digest(seal.encode(), expected.encode()) else None

    def end(self, token: str) -> None:
        """End a session now."""
        self.redis.delete(_name(token))


def _name(token: str) -> str:
    return _PREFIX + hashlib.sha256(token.encode()).hexdigest()


def open_sessions(services: Services) -> Sessions:
    """Return the sessions of a service."""
    return Sessions(services.probe, services.pseudonyms, _SESSION)


SessionsOf = Annotated[Sessions, part("sessions")]


def visitor(request: Request, services: ServicesOf, sessions: SessionsOf) -> Visitor:
    """Return the user, or raise ``UnauthenticatedError``; a revoked key ends its sessions."""
    cookie = request.cookies.get(COOKIE, "")
    key_id = sessions.key_of(cookie) if cookie else None
    if key_id is not None:
        with services.database.transaction() as session:
            caller = api_keys.caller_with_id(session, key_id)
            if caller is not None:
                name = session.get_one(ApiKeyRow, key_id).name
                return Visitor(cookie, caller, name, request.url.path)
        sessions.end(cookie)
    raise UnauthenticatedError("log in")


AnyVisitor = Annotated[Visitor, Depends(visitor)]


def _requires(scope: Scope) -> Callable[[Visitor], Visitor]:
    def check(someone: AnyVisitor) -> Visitor:
        require_scope(someone.caller, scope)
        return someone

    check.scope = scope  # type: ignore[attr-defined]
    return check


def _sends(scope: Scope) -> Callable[..., Awaitable[Visitor]]:
    async def check(request: Request, someone: AnyVisitor, form: Form) -> Visitor:
        """Return who sent a form; all that is done for it is done in their name."""
        require_own(request, form, cookie=someone.cookie)
        require_scope(someone.caller, scope)
        actor.become(someone.caller.key_id)
        return someone

    check.scope = scope  # type: ignore[attr-defined]
    return check


RequestsReader = Annotated[Visitor, Depends(_requires(Scope.FORGET_READ))]
LogReader = Annotated[Visitor, Depends(_requires(Scope.LOG_READ))]
ModelsReader = Annotated[Visitor, Depends(_requires(Scope.MODELS_READ))]
RequestsWriter = Annotated[Visitor, Depends(_requires(Scope.FORGET_WRITE))]
Admin = Annotated[Visitor, Depends(_requires(Scope.ADMIN))]
RequestsSender = Annotated[Visitor, Depends(_sends(Scope.FORGET_WRITE))]
RequestsSeeker = Annotated[Visitor, Depends(_sends(Scope.FORGET_READ))]
ModelsSender = Annotated[Visitor, Depends(_sends(Scope.MODELS_WRITE))]
AdminSender = Annotated[Visitor, Depends(_sends(Scope.ADMIN))]


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie that scripts cannot read and other sites cannot send."""
    proxied = request.headers.get("x-forwarded-proto", "")
    response.set_cookie(
        name,
        value,
        httponly=True,
        samesite="strict",
        secure="https" in (request.url.scheme, proxied),
        path="/",
    )
