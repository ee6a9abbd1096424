"""The API as an ASGI application."""

import logging

from fastapi import FastAPI
from sqlalchemy.exc import DBAPIError

from app import schema
from app.api import (
    backbones,
    certificates,
    datasets,
    errors,
    forget_requests,
    keys,
    log,
    models,
    operations,
    plans,
    runs,
    versions,
)
from app.services import Services, open_services
from app.settings import Settings
from app.web.installation import install as install_pages

_log = logging.getLogger("expunge.api")


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
        log,
        operations,
        plans,
    ):
        app.include_router(resource.router)
    install_pages(app, services.settings)
    return app


def app_from_environment() -> FastAPI:
    """Return the application as the environment configures it; for uvicorn's ``--factory``."""
    services = open_services(Settings())
    _warn_of_excess_rights(services)
    return create_app(services)


def _warn_of_excess_rights(services: Services) -> None:
    """Tell the operator that nothing but good will keeps this process from rewriting the log."""
    try:
        excessive = schema.may_rewrite_log(services.database)
    except DBAPIError:
        return
    if excessive:
        _log.warning(
            "the service's database role owns the log and could rewrite it: give it a role of its "
            "own in EXPUNGE_DATABASE_URL, the owner's in EXPUNGE_MIGRATION_URL, and run "
            "'expunge init'"
        )
