"""Prometheus metrics of ledger and queue, read at scrape time: counts, never a row or an id.

A source that does not answer is reported as down and its metrics are left out: absent does not mean
zero. Labels are states, kinds, and names of models and targets. Finished rows are counted through
indices only; ages are read for open ones only.
"""

import logging
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector
from redis import Redis, RedisError
from sqlalchemy import ColumnElement, Float, cast, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.delivery.publishing import repository
from app.domain.states import ACTIVE_RUN_STATES, BlobState, RequestState
from app.evidence.log import checkpoints, trees
from app.ledger.certificates.present_release import capacities
from app.ledger.deadlines import IS_OPEN
from app.ledger.outbox import Topic
from app.ledger.tables import ForgetRequestRow, ObligationRow, OutboxRow, RunRow
from app.operations.monitoring.queue_state import queue_state
from app.registry.tables import ModelRow
from app.runtime.database import Database
from app.runtime.database.queries import database_time
from app.runtime.logs import describe
from app.storage.tables import BlobRow

_log = logging.getLogger("expunge.metrics")
_WORKER_STATES = ("idle", "busy")
_DAY_S = 86400.0
AGE_BOUNDS_S = tuple(days * _DAY_S for days in (1, 3, 7, 14, 21, 28, 30, 45, 90))


def gauge(
    name: str, meaning: str, *labels: str, rows: Iterable[Sequence[Any]]
) -> GaugeMetricFamily:
    """Return a gauge; rows are the labels' values, then the number, and left out without one."""
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for *values, number in rows:
        if number is not None:
            family.add_metric(values, number)
    return family


def number(name: str, meaning: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge without labels; it is absent where there is no number."""
    return gauge(name, meaning, rows=[(value,)])


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


def ledger_metrics(session: Session) -> Iterator[Metric]:
    """Yield the metrics of requests, runs, outbox, log and blobs."""
    parts: Sequence[Callable[[Session], Iterable[Metric]]] = (
        _ages,
        _deadlines,
        _obligations,
        _capacities,
        _runs,
        _active_runs,
        _outbox,
        _log_tree,
        _shredding,
    )
    found = requests_by_state(session).items()
    yield gauge("expunge_forget_requests", "Forget requests.", "state", rows=found)
    for part in parts:
        yield from part(session)


def requests_by_state(session: Session) -> Mapping[RequestState, int]:
    """Return the number of requests in each state, including zeros."""
    query = select(ForgetRequestRow.state, func.count()).group_by(ForgetRequestRow.state)
    found = {state: count for state, count in session.execute(query)}  # noqa: C416 - of rows
    return {state: found.get(state, 0) for state in RequestState}


def overdue_requests(session: Session) -> int:
    """Return the number of open requests past their deadline."""
    overdue = IS_OPEN & (ForgetRequestRow.due_at <= func.clock_timestamp())
    return session.scalar(select(func.count()).where(overdue)) or 0


def _ages(session: Session) -> Iterator[Metric]:
    ages = GaugeHistogramMetricFamily(
        "expunge_open_forget_request_age_seconds",
        "Age of the requests whose records are not erased yet, since their receipt.",
        labels=("state",),
    )
    oldest: list[tuple[str, float]] = []
    state = ForgetRequestRow.state
    age_s = _in_seconds(func.clock_timestamp() - ForgetRequestRow.received_at)
    younger = [func.count().filter(age_s <= bound) for bound in AGE_BOUNDS_S]
    query = select(state, func.count(), func.sum(age_s), func.max(age_s), *younger)
    for name, count, total_s, oldest_s, *up_to in session.execute(
        query.where(IS_OPEN).group_by(state)
    ):
        bounds = [str(bound) for bound in AGE_BOUNDS_S]
        buckets = [*zip(bounds, up_to, strict=True), ("+Inf", count)]
        ages.add_metric((name,), buckets, gsum_value=total_s)
        oldest.append((name, oldest_s))
    yield ages
    meaning = "Age of the oldest open request."
    yield gauge("expunge_oldest_forget_request_age_seconds", meaning, "state", rows=oldest)


def _deadlines(session: Session) -> Iterator[Metric]:
    left_s = _in_seconds(ForgetRequestRow.due_at - func.clock_timestamp())
    warned = func.count().filter(left_s > 0, ForgetRequestRow.due_soon_noted_at.is_not(None))
    query = select(func.min(left_s), warned).where(IS_OPEN)
    earliest_s, due_soon = session.execute(query).one()
    yield number(
        "expunge_earliest_deadline_days",
        "Days until the earliest deadline of an open request, negative after it.",
        None if earliest_s is None else earliest_s / _DAY_S,
    )
    yield number(
        "expunge_forget_requests_due_soon",
        "Open requests whose deadline warning was sent and that are not overdue.",
        due_soon,
    )
    yield number(
        "expunge_forget_requests_overdue",
        "Open requests past their deadline.",
        overdue_requests(session),
    )


def _obligations(session: Session) -> Iterator[Metric]:
    counted = (
        select(ObligationRow.model_id, ObligationRow.state, func.count().label("count"))
        .group_by(ObligationRow.model_id, ObligationRow.state)
        .subquery()
    )
    query = select(ModelRow.name, counted.c.state, counted.c.count).join(
        counted, counted.c.model_id == ModelRow.id
    )
    meaning = "Obligations by model and state."
    yield gauge("expunge_obligations", meaning, "model", "state", rows=session.execute(query))


def _capacities(session: Session) -> Iterator[Metric]:
    yield gauge(
        "expunge_model_capacity_records",
        "How many more records the present version covers without a run.",
        "model",
        rows=((name, capacity.left) for name, capacity in capacities(session)),
    )


def _runs(session: Session) -> Iterator[Metric]:
    query = select(RunRow.kind, RunRow.state, func.count(), func.sum(RunRow.attempt))
    found = session.execute(query.group_by(RunRow.kind, RunRow.state)).all()
    labels, attempts = ("kind", "state"), "Attempts at runs, in total."
    yield gauge("expunge_runs", "Runs.", *labels, rows=[row[:3] for row in found])
    rows = [(*row[:2], row[3]) for row in found]
    yield gauge("expunge_run_attempts", attempts, *labels, rows=rows)


def _active_runs(session: Session) -> Iterator[Metric]:
    row = RunRow
    query = select(
        ModelRow.name, row.kind, row.state, row.attempt, row.phase, row.step, row.total_steps
    ).join(ModelRow, ModelRow.id == row.model_id)
    active = session.execute(query.where(row.state.in_(ACTIVE_RUN_STATES))).all()
    yield gauge(
        "expunge_active_run_attempt",
        "The current attempt at a queued or active run.",
        *("model", "kind", "state"),
        rows=((run.name, run.kind, run.state, run.attempt) for run in active),
    )
    labels, in_phase = ("model", "kind", "phase"), [run for run in active if run.phase is not None]
    steps = CounterMetricFamily(
        "expunge_run_steps",
        "Steps taken in a run's current phase; its rate is the steps per second.",
        labels=labels,
    )
    for run in in_phase:
        if run.step is not None:
            steps.add_metric((run.name, run.kind, run.phase), run.step)
    yield steps
    yield gauge(
        "expunge_run_planned_steps",
        "Most steps of a run's current phase.",
        *labels,
        rows=((run.name, run.kind, run.phase, run.total_steps) for run in in_phase),
    )


def _outbox(session: Session) -> Iterator[Metric]:
    late_s = _in_seconds(func.clock_timestamp() - func.min(OutboxRow.available_at))
    query = select(OutboxRow.topic, func.count(), func.greatest(late_s, 0.0))
    found = {row[0]: row for row in session.execute(query.group_by(OutboxRow.topic))}
    rows = [found.get(topic, (topic, 0, 0.0)) for topic in sorted({*Topic, *found})]
    depth, oldest = (
        "Outbox rows that wait for the dispatcher.",
        "How long the oldest outbox row is due.",
    )
    yield gauge("expunge_outbox_depth", depth, "topic", rows=[row[:2] for row in rows])
    ages = [(topic, oldest_s) for topic, _, oldest_s in rows]
    yield gauge("expunge_outbox_oldest_age_seconds", oldest, "topic", rows=ages)


def _log_tree(session: Session) -> Iterator[Metric]:
    entries = trees.size(session)
    signed, age_s = checkpoints.newest(session)
    unsigned = "Entries that no signed checkpoint covers."
    yield number("expunge_log_entries", "Entries of the log.", entries)
    yield number("expunge_log_unsigned_entries", unsigned, entries - signed)
    age = "Since the newest checkpoint was signed."
    yield number("expunge_log_checkpoint_age_seconds", age, age_s)


def _shredding(session: Session) -> Iterator[Metric]:
    doomed = BlobRow.state == BlobState.DOOMED
    left = (BlobRow.state == BlobState.SHREDDED) & BlobRow.object_deleted_at.is_(None)
    for name, meaning, which in (
        ("expunge_blobs_to_shred", "Blobs given up whose keys still exist.", doomed),
        ("expunge_objects_to_delete", "Stored objects whose keys are destroyed.", left),
    ):
        yield number(name, meaning, session.scalar(select(func.count()).where(which)) or 0)


def _in_seconds(interval: ColumnElement[Any]) -> ColumnElement[float]:
    return cast(func.extract("epoch", interval), Float)


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
        for source, read in (
            ("database", self._ledger),
            ("redis", lambda: list(queue_metrics(self.redis))),
        ):
            families: list[Metric] = []
            try:
                families = read()
            except (SQLAlchemyError, RedisError) as error:
                _log.warning("no metrics from %s: %s", source, describe(error))
            up.add_metric((source,), float(bool(families)))
            yield from families
        yield up

    def _ledger(self) -> list[Metric]:
        with self.database.transaction() as session:
            return [*ledger_metrics(session), *publishing_metrics(session)]
