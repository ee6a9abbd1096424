"""``/login`` and ``/logout``: an API key for a session."""

import secrets

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from app.api.access import ServicesOf
from app.ledger import api_keys
from app.web import forms, pages
from app.web.access import COOKIE, AnyVisitor, SessionsOf, set_cookie
from app.web.forms import Form
from app.web.rendering import render

router = pages.router()

_FORM_COOKIE = "expunge-login"
_MAX_KEY = 512


@router.get("/login")
def ask(request: Request) -> Response:
    """Ask for a key."""
    return _form(request, problem=None, status=200)


@router.post("/login")
def log_in(request: Request, services: ServicesOf, sessions: SessionsOf, form: Form) -> Response:
    """Start a session, if the key holds."""
    forms.require_own(request, form, cookie=request.cookies.get(_FORM_COOKIE, ""))
    address = request.client.host if request.client is not None else ""
    if sessions.must_wait(address):
        return _form(request, problem="Too many attempts: wait a minute.", status=429)
    secret = form.get("key", "").strip()
    with services.database.transaction() as session:
        caller = api_keys.caller_of(session, secret) if 0 < len(secret) <= _MAX_KEY else None
    if caller is None:
        sessions.note_failure(address)
        return _form(request, problem="This key does not hold. Was it revoked?", status=401)
    response = RedirectResponse("/", status_code=303)
    set_cookie(request, response, COOKIE, sessions.start(caller.key_id))
    response.delete_cookie(_FORM_COOKIE)
    return response


@router.post("/logout")
def log_out(
    request: Request, sessions: SessionsOf, visitor: AnyVisitor, form: Form
) -> RedirectResponse:
    """End the session."""
    forms.require_own(request, form, cookie=visitor.cookie)
    sessions.end(visitor.cookie)
    response = RedirectResponse(pages.LOGIN, status_code=303)
    response.delete_cookie(COOKIE)
    return response


def _form(request: Request, *, problem: str | None, status: int) -> Response:
    cookie = request.cookies.get(_FORM_COOKIE) or secrets.token_urlsafe(32)
    response = render(
        request,
        "login.html",
        None,
        status=status,
        problem=problem,
        token=forms.token_of(cookie),
    )
    set_cookie(request, response, _FORM_COOKIE, cookie)
    if status == 429:
        response.headers["Retry-After"] = "60"
    return response
