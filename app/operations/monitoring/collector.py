"""Prometheus metrics of ledger and queue, read at scrape time.

A source that does not answer is reported as down and its metrics are left out: absent does not mean
zero. Labels are states, kinds, and names of models and targets.
"""

import logging
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

from prometheus_client.core import Metric
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector
from redis import Redis, RedisError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.delivery.publishing import repository
from app.operations.monitoring.gauges import gauge, number
from app.operations.monitoring.ledger_metrics import ledger_metrics
from app.operations.monitoring.queue_state import queue_state
from app.runtime.database import Database
from app.runtime.database.queries import database_time
from app.runtime.logs import describe


def publishing_metrics(session: Session) -> Iterator[Metric]:
    """Yield how long targets have not held what they should, and which versions stay there."""
    now = database_time(session)
    yield gauge(
        "expunge_publishing_unsettled_seconds",
        "How long a target has not held what it should.",
        *("model", "target"),
        rows=((*where, _seconds(since, now)) for *where, since in repository.unsettled(session)),
    )
    yield gauge(
        "expunge_publishing_not_withdrawn_seconds",
        "How long a version should have been gone from a target.",
        *("model", "target", "version"),
        rows=(
            (model, target, str(number), _seconds(since, now))
            for model, target, number, since in repository.not_withdrawn(session)
        ),
    )


def _seconds(since: datetime, now: datetime) -> float:
    return max(0.0, (now.astimezone(UTC) - since.astimezone(UTC)).total_seconds())


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


_log = logging.getLogger("expunge.metrics")


@dataclass(frozen=True)
class ServiceCollector(Collector):
    """Reads Postgres and Redis at every scrape."""

    database: Database
    redis: Redis

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: that would take a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric that is available now."""
        build = {"version": version("expunge"), "python": platform.python_version()}
        yield InfoMetricFamily("expunge_build", "Version of the running program.", value=build)
        up = GaugeMetricFamily(
            "expunge_source_up",
            "1 if the source of other metrics answers; otherwise they are absent.",
            labels=("source",),
        )
        for source, read in (("database", self._ledger), ("redis", self._queue)):
            families = _read(source, read)
            up.add_metric((source,), float(bool(families)))
            yield from families
        yield up

    def _ledger(self) -> list[Metric]:
        with self.database.transaction() as session:
            return [*ledger_metrics(session), *publishing_metrics(session)]

    def _queue(self) -> list[Metric]:
        return list(queue_metrics(self.redis))


def _read(source: str, read: Callable[[], list[Metric]]) -> list[Metric]:
    try:
        return read()
    except (SQLAlchemyError, RedisError) as error:
        _log.warning("no metrics from %s: %s", source, describe(error))
        return []
