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
    versions,
)
from app.services import Services, open_services
from app.settings import Settings


def create_app(services: Services) -> FastAPI:
    """Return the application over the given services.

    Raises:
        ConfigurationError: a key is missing; run ``expunge init``.
    """
    _ = services.model_signer  # what is missing shows now, not at the first download
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
        versions,
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
