"""Liveness and readiness of the service."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Response

from app.api.protocol.dependencies import part
from app.api.protocol.schemas import Answer
from app.operations.monitoring.readiness import ReadinessChecks

router = APIRouter(tags=["operations"])


class Health(Answer):
    """Whether the process is running."""

    status: str


class Ready(Answer):
    """The state of each dependency, in a word or phrase.

    ``status`` is ``ok``, ``degraded`` (requests are accepted and will wait) or ``unavailable``.
    """

    status: str
    database: str
    migrations: str
    ledger: str
    signing_key: str
    key_store: str
    disk: str
    redis: str
    workers: str
    dispatcher: str


@router.get("/livez")
async def check_liveness() -> Health:  # without a thread: all of them may be busy
    """Answer 200 while the process is running."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Ready, "description": "Not ready"}})
async def check_readiness(
    checks: Annotated[ReadinessChecks, part("readiness")], response: Response
) -> Ready:
    """Answer 200 if requests can be accepted, with the state of each dependency.

    It is at most a second old.
    """
    found = await checks.present()
    if found.status == "unavailable":
        response.status_code = 503
    return Ready(status=found.status, **asdict(found))
