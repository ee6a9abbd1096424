"""Adds the pages and their static files to an application."""

from importlib import resources

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.services import Services
from app.web import (
    audit,
    callbacks,
    datasets,
    failures,
    keys,
    login,
    model_changes,
    models,
    overview,
    queue,
    reference,
    requests,
    runs,
    submitting,
    verify,
    workers,
)
from app.web.access import open_sessions
from app.web.figures import statistics
from app.web.pages import HEADERS

PARTS = (
    overview,
    login,
    submitting,
    queue,
    requests,
    runs,
    models,
    model_changes,
    datasets,
    workers,
    failures,
    statistics,
    keys,
    callbacks,
    audit,
    verify,
    reference,
)


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
