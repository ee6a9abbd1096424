"""HTML pages: templates and how they format; security headers on each, and errors as pages."""

import math
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from redis import RedisError
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from app.api.protocol.errors import type_of
from app.domain import errors
from app.evidence.certificates.plain_words import promise
from app.registry.card import IN_WORDS
from app.web.access import ForeignFormError, Visitor
from app.web.letters import moment_in

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
_DAY_S = 86_400
_UNITS = ((_DAY_S, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
_EMPHASIS = re.compile(r"\*\*(.+?)\*\*|`(.+?)`")
_DASH = "–"


def render(
    template: str, visitor: Visitor | None, *, status: int = 200, **context: object
) -> HTMLResponse:
    """Render a page. Template variables are escaped."""
    page = _TEMPLATES.get_template(template)
    return HTMLResponse(page.render(visitor=visitor, now=datetime.now(UTC), **context), status)


def moment(when: datetime | None) -> Markup | str:
    """Format a time in UTC, also machine-readable."""
    if when is None:
        return _DASH
    utc = when.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.isoformat(timespec="seconds"), utc.strftime("%d %b %Y %H:%M").lstrip("0") + " UTC"
    )


def span(duration: timedelta) -> str:
    """Format a duration in its largest unit: ``3 days``."""
    seconds = abs(duration.total_seconds())
    for size, unit in _UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "0 seconds"


def lasting(seconds: float) -> str:
    """Format a number of seconds in its largest unit, rounded up to one second."""
    return span(timedelta(seconds=math.ceil(seconds)))


def since(when: datetime | None, now: datetime) -> str:
    """Format how long ago a time was."""
    return "never" if when is None else f"{span(now - when)} ago"


def due(when: datetime, now: datetime) -> str:
    """Format the time until a deadline."""
    return f"{span(now - when)} overdue" if when < now else f"in {span(when - now)}"


def number(value: float | None) -> str:
    """Format a number with four digits."""
    return _DASH if value is None else f"{value:.4g}"


def count(value: float) -> str:
    """Format a large number with its thousands apart."""
    return f"{value:,.0f}"


def size(size_bytes: int) -> str:
    """Format a size in bytes in its largest unit."""
    amount = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


def words(name: str | None) -> str:
    """Format an identifier as words: ``fine_tuning``."""
    return _DASH if name is None else name.replace("_", " ")


def short(name: str) -> str:
    """Shorten an id or digest for a table; its own page shows it in full."""
    prefix, separator, rest = name.rpartition("_")
    return f"{prefix}{separator}{rest[:8]}"


def emphasised(text: str) -> Markup:
    """Convert ``**strong**`` and `` `code` `` in the service's own sentences to markup."""
    line = " ".join(text.replace("``", "`").split())
    return Markup(  # noqa: S704 - the text is escaped first
        _EMPHASIS.sub(
            lambda found: (
                f"<strong>{found[1]}</strong>" if found[1] else f"<code>{found[2]}</code>"
            ),
            str(escape(line)),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("app.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    environment.filters |= IN_WORDS
    spellings = (moment, moment_in, since, due, number, count, size, words, short, emphasised)
    for spelling in (*spellings, lasting, promise):
        environment.filters[spelling.__name__] = spelling
    return environment


_TEMPLATES = _environment()


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
        said = str(error)
        if isinstance(error, errors.UnknownRecordsError):
            said += f", among them {', '.join(error.examples)}"
        return _page(status, title, f"{said}.")
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


def _page(status: int, title: str, message: str) -> Response:
    return render("error.html", None, status=status, title=title, message=message)
