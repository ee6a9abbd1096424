"""``/login`` and ``/logout``: exchanges an API key for a session; ``/``: where it may begin."""

import secrets
from collections.abc import Mapping

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from app.access import api_keys
from app.access.authentication import Authentication
from app.api.protocol.access import address_of
from app.domain.errors import TooManyRequestsError, UnauthenticatedError
from app.domain.states import Scope
from app.web import access, pages
from app.web.access import COOKIE, AnyVisitor, Form, SessionsOf, set_cookie
from app.web.pages import render

router = pages.router()

_FORM_COOKIE = "expunge-login"
_PLACES = ((Scope.FORGET_READ, "/requests"), (Scope.MODELS_READ, "/models"))


@router.get("/")
def show(visitor: AnyVisitor) -> Response:
    """Go to the first place, or say that there is none."""
    for scope, place in _PLACES:
        if visitor.caller.allows(scope):
            return pages.redirect(place)
    return render(
        "error.html",
        visitor,
        title="Nothing to see",
        message="This key may see neither requests nor models.",
    )


@router.get("/login")
def ask(request: Request) -> Response:
    """Ask for a key."""
    return _form(request, problem=None, status=200)


@router.post("/login")
async def log_in(request: Request, sessions: SessionsOf, form: Form) -> Response:
    """Start a session, if the key is valid."""
    access.require_own(request, form, cookie=request.cookies.get(_FORM_COOKIE, ""))
    authentication: Authentication = request.app.state.authentication
    secret = form.get("key", "").strip()
    if not secret.startswith(api_keys.PREFIX):
        secret = api_keys.PREFIX  # no key has this value: tokens of an issuer start no session
    try:
        caller = await authentication.caller_of(secret, address_of(request))
    except TooManyRequestsError as error:
        return _form(
            request,
            problem="Too many attempts: wait a minute.",
            status=429,
            headers={"Retry-After": str(error.retry_after_s)},
        )
    except UnauthenticatedError:
        problem = "This key is not valid. Was it revoked, or has it expired?"
        return _form(request, problem=problem, status=401)
    response = pages.redirect("/")
    token = await run_in_threadpool(sessions.start, caller.key_id)
    set_cookie(request, response, COOKIE, token)
    response.delete_cookie(_FORM_COOKIE)
    return response


@router.post("/logout")
def log_out(request: Request, sessions: SessionsOf, visitor: AnyVisitor, form: Form) -> Response:
    """End the session."""
    access.require_own(request, form, cookie=visitor.cookie)
    sessions.end(visitor.cookie)
    response = pages.redirect(pages.LOGIN)
    response.delete_cookie(COOKIE)
    return response


def _form(
    request: Request, *, problem: str | None, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    cookie = request.cookies.get(_FORM_COOKIE) or secrets.token_urlsafe(32)
    response = render(
        "login.html", None, status=status, problem=problem, token=access.token_of(cookie)
    )
    set_cookie(request, response, _FORM_COOKIE, cookie)
    response.headers.update(headers or {})
    return response
