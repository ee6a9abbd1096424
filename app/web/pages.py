"""Routes of HTML pages: security headers on each, and errors as pages."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.routing import APIRoute
from redis import RedisError
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.api.protocol.errors import type_of
from app.domain import errors
from app.web.forms import ForeignFormError
from app.web.rendering import render

LOGIN = "/login"
HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

_AS_PAGES = (400, 403, 404, 409, 410, 413, 415, 422)
"""Their messages are the service's own and hold no secret."""
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """A route that shows errors as pages."""

    def get_route_handler(self) -> _Handler:
        """Wrap the endpoint."""
        handle = super().get_route_handler()

        async def page(request: Request) -> Response:
            try:
                response = await handle(request)
            except Exception as error:  # noqa: BLE001 - unknown errors are raised again
                response = _error_page(error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return page


def redirect(path: str) -> Response:
    """Return the answer to a form that was done: the page to load next."""
    return RedirectResponse(path, status_code=303)


def attachment(
    document: object, filename: str, *, media_type: str = "application/json"
) -> Response:
    """Return a document as a file to be stored."""
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    return JSONResponse(document, media_type=media_type, headers=headers)


def router() -> APIRouter:
    """Return a router of pages, which are not part of the documented interface."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def _error_page(error: Exception) -> Response:
    if isinstance(error, errors.OverloadedError):
        return _page(503, "Too busy", "The service is busy. Try again soon.")
    if isinstance(error, errors.UnauthenticatedError):
        return redirect(LOGIN)
    status, title = _heading(error)
    if status in _AS_PAGES:
        return _page(status, title, f"{_said(error)}.")
    if isinstance(error, RequestValidationError | DataError):
        return _page(422, "Not understood", "The address or the form holds a wrong value.")
    if isinstance(error, DBAPIError | PoolTimeoutError):
        return _page(503, "No database", "The database cannot be reached. Try again soon.")
    if isinstance(error, RedisError):
        return _page(
            503,
            "No Redis",
            "Redis cannot be reached, and logins are kept there. Requests are safe in the ledger; "
            "runs continue once Redis is back.",
        )
    raise error


def _heading(error: Exception) -> tuple[int, str]:
    """Return status and title of an error of ours; the API has most of them, too."""
    if isinstance(error, ForeignFormError):
        return 403, "Not sent"
    if isinstance(error, errors.MissingExtraError):
        return 422, "Not installed"
    kind = type_of(error) if isinstance(error, errors.ExpungeError) else None
    return (500, "") if kind is None else (kind.status, kind.title)


def _said(error: Exception) -> str:
    if isinstance(error, errors.UnknownRecordsError):
        return f"{error}, among them {', '.join(error.examples)}"
    return str(error)


def _page(status: int, title: str, message: str) -> Response:
    return render("error.html", None, status=status, title=title, message=message)
