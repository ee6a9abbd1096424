"""Liveness and readiness of the service."""

from dataclasses import asdict

from fastapi import APIRouter, Response

from app.api.protocol.access import ServicesOf
from app.api.protocol.schemas import Answer
from app.monitoring.readiness import readiness

router = APIRouter(tags=["operations"])


class Health(Answer):
    """Whether the process runs."""

    status: str


class Ready(Answer):
    """The state of each part, in a word or phrase.

    ``status`` is ``ok``, ``degraded`` (requests are accepted and will wait) or ``unavailable``.
    """

    status: str
    database: str
    migrations: str
    ledger: str
    signing_key: str
    key_store: str
    redis: str
    workers: str
    dispatcher: str


@router.get("/livez")
def livez() -> Health:
    """Answer as long as the process runs."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Ready, "description": "Not ready"}})
def readyz(services: ServicesOf, response: Response) -> Ready:
    """Answer 200 when requests can be accepted, and say how each part is."""
    found = readiness(services)
    if found.status == "unavailable":
        response.status_code = 503
    return Ready(status=found.status, **asdict(found))
