"""The state of Redis as metrics."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.metrics_core import GaugeMetricFamily
from redis import Redis

from app.monitoring.queue_state import queue_state

_WORKER_STATES = ("idle", "busy")


def queue_metrics(connection: Redis) -> Iterator[Metric]:
    """Yield the metrics of queue, workers and dispatchers."""
    state = queue_state(connection)
    yield GaugeMetricFamily(
        "expunge_queue_depth", "Runs queued in Redis for a worker.", value=state.depth
    )
    workers = GaugeMetricFamily(
        "expunge_workers", "Workers with a heartbeat within a minute.", labels=("state",)
    )
    for name in sorted({*_WORKER_STATES, *state.states}):
        workers.add_metric((name,), state.states[name])
    yield workers
    silent = GaugeMetricFamily(
        "expunge_worker_heartbeat_age_seconds",
        "Age of the oldest last heartbeat of any live worker.",
    )
    if state.oldest_heartbeat_s is not None:
        silent.add_metric((), state.oldest_heartbeat_s)
    yield silent
    yield GaugeMetricFamily(
        "expunge_dispatchers",
        "Dispatchers with a heartbeat within half a minute.",
        value=state.dispatchers,
    )
