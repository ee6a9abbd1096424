"""The API as an ASGI application."""

from fastapi import FastAPI

from app.api import (
    backbones,
    certificates,
    datasets,
    errors,
    forget_requests,
    keys,
    models,
    operations,
    plans,
    runs,
)
from app.services import Services, open_services
from app.settings import Settings


def create_app(services: Services) -> FastAPI:
    """Return the application over the given services."""
    app = FastAPI(
        title="Expunge",
        summary="Makes trained PyTorch models forget, with proof.",
        version="1",
    )
    app.state.services = services
    errors.install(app)
    for resource in (
        datasets,
        backbones,
        models,
        forget_requests,
        certificates,
        runs,
        keys,
        operations,
        plans,
    ):
        app.include_router(resource.router)
    return app


def app_from_environment() -> FastAPI:
    """Return the application as the environment configures it; for uvicorn's ``--factory``."""
    return create_app(open_services(Settings()))
