"""``/metrics``: metrics for Prometheus."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

from app.api.protocol.access import GuardedRoute
from app.api.protocol.errors import problem_responses

router = APIRouter(tags=["operations"], route_class=GuardedRoute)


@router.get(
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
