"""Prometheus metrics of ledger and queue, read at scrape time.

A source that does not answer is reported as down and its metrics are left out: absent does not mean
zero. Labels are states, kinds, and names of models and targets.
"""

import logging
import platform
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version

from prometheus_client.core import Metric
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector
from redis import Redis, RedisError
from sqlalchemy.exc import SQLAlchemyError

from app.database import Database
from app.logs import describe
from app.monitoring.ledger_metrics import ledger_metrics
from app.monitoring.publishing_metrics import publishing_metrics
from app.monitoring.queue_metrics import queue_metrics

_log = logging.getLogger("expunge.metrics")


class ServiceCollector(Collector):
    """Reads Postgres and Redis at every scrape."""

    def __init__(self, database: Database, redis: Redis) -> None:
        self._database = database
        self._redis = redis

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
        with self._database.transaction() as session:
            return [*ledger_metrics(session), *publishing_metrics(session)]

    def _queue(self) -> list[Metric]:
        return list(queue_metrics(self._redis))


def _read(source: str, read: Callable[[], list[Metric]]) -> list[Metric]:
    try:
        return read()
    except (SQLAlchemyError, RedisError) as error:
        _log.warning("no metrics from %s: %s", source, describe(error))
        return []
