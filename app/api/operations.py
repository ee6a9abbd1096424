"""Liveness and readiness of the service, and its metrics for Prometheus."""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

from app.api.protocol.access import GuardedRoute, part
from app.api.protocol.errors import problem_responses
from app.api.protocol.schemas import Answer, shaped_as
from app.operations.monitoring.readiness import Readiness, ReadinessChecks

router = APIRouter(tags=["operations"])
metrics = APIRouter(tags=["operations"], route_class=GuardedRoute)


class Health(Answer):
    """Whether the process is running."""

    status: str


@shaped_as(Readiness)
class Ready(Answer):
    """The state of each dependency, in a word or phrase.

    ``status`` is ``ok``, ``degraded`` (requests are accepted and will wait) or ``unavailable``.
    """

    status: str


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
    return Ready.of(found)


@metrics.get(
    "/metrics",
    response_class=Response,
    responses=problem_responses()
    | {200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}},
)
def get_metrics(request: Request) -> Response:
    """Return the service's metrics.

    Needs ``log:read``, unless the operator has made them public (``EXPUNGE_METRICS_PUBLIC``).
    """
    registry: CollectorRegistry = request.app.state.metrics.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
