"""The state of Redis as metrics."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from redis import Redis

from app.monitoring.gauges import gauge, number
from app.monitoring.queue_state import queue_state

_WORKER_STATES = ("idle", "busy")


def queue_metrics(connection: Redis) -> Iterator[Metric]:
    """Yield the metrics of queue, workers and dispatchers."""
    state = queue_state(connection)
    names = sorted({*_WORKER_STATES, *state.states})
    yield number("expunge_queue_depth", "Runs queued in Redis for a worker.", state.depth)
    yield gauge(
        "expunge_workers",
        "Workers with a heartbeat within a minute.",
        "state",
        rows=((name, state.states[name]) for name in names),
    )
    yield number(
        "expunge_worker_heartbeat_age_seconds",
        "Age of the oldest last heartbeat of any live worker.",
        state.oldest_heartbeat_s,
    )
    yield number(
        "expunge_dispatchers",
        "Dispatchers with a heartbeat within half a minute.",
        state.dispatchers,
    )
