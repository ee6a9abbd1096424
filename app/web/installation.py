"""Adds the pages and their static files to an application."""

from importlib import import_module, resources

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.services import Services
from app.web.access import open_sessions
from app.web.pages import HEADERS

# Each has a router; the first that has a path answers it.
PARTS = [
    import_module(f"app.web.{name}")
    for name in (
        *("overview", "login", "submitting", "queue", "requests", "runs", "models"),
        *("model_changes", "datasets", "figures.statistics", "keys", "callbacks", "audit"),
        "reference",
    )
]


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
    for part in PARTS:
        app.include_router(part.router)
    directory = str(resources.files("app.web") / "static")
    app.mount("/static", _Files(directory=directory), name="static")
