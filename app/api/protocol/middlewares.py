"""The middlewares of every request, outermost first."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from app.api.protocol.bodies import Bodies
from app.api.protocol.etags import EntityTags
from app.api.protocol.headers import DESCRIPTIONS
from app.api.protocol.idempotency import HEADER
from app.api.protocol.observation import REQUEST_ID
from app.runtime.settings import Settings

_SENDABLE = (
    "Authorization",
    "Content-Type",
    HEADER,
    "If-Match",
    "If-None-Match",
    "If-Range",
    "Prefer",
    "Range",
    REQUEST_ID,
)


def install(app: FastAPI, settings: Settings) -> None:
    """Add the middlewares to an application; the last one added is the outermost."""
    app.add_middleware(EntityTags)
    app.add_middleware(Bodies, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=_SENDABLE,
            expose_headers=[*DESCRIPTIONS],
        )
