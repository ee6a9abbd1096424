"""Adds the pages and their static files to an application."""

import re
from importlib import import_module, resources
from typing import Final

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from app.services import Services
from app.web.access import open_sessions
from app.web.pages import HEADERS

# Each has a router; the first that has a path answers it.
PARTS = [
    import_module(f"app.web.{name}")
    for name in ("login", "requests", "runs", "models", "data", "dossiers", "settings")
]

_OWN_COOKIES: Final = re.compile(rb"(?:^|;) *(expunge-(?:session|login)=[\w-]{1,100})(?=;|$)")


class _OwnCookies:
    """Leaves of all cookies only the pages' own; Python 3.11's reader takes seconds for some."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request."""
        if scope["type"] == "http":
            scope["headers"] = [
                (name, b"; ".join(_OWN_COOKIES.findall(value)) if name == b"cookie" else value)
                for name, value in scope["headers"]
            ]
        await self._app(scope, receive, send)


class _Files(StaticFiles):
    """Style sheet and scripts with the pages' headers; browsers revalidate them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        for name, value in (HEADERS | {"Cache-Control": "no-cache"}).items():
            response.headers[name] = value
        return response


def install(app: FastAPI, services: Services) -> None:
    """Add the operator's page."""
    app.state.sessions = open_sessions(services)
    app.add_middleware(_OwnCookies)
    for part in PARTS:
        app.include_router(part.router)
    directory = str(resources.files("app.web") / "static")
    app.mount("/static", _Files(directory=directory), name="static")
