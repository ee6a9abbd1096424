"""The ledger's statistics as metrics: grouped counts, never a row or an id.

Finished rows are counted through indices only; ages are read for open ones only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
)
from sqlalchemy import ColumnElement, Float, cast, func, select
from sqlalchemy.orm import Session

from app.domain.states import ACTIVE_RUN_STATES, BlobState, RequestState
from app.ledger.certificates.capacities import capacities
from app.ledger.deadlines import IS_OPEN
from app.ledger.outbox import Topic
from app.ledger.tables import ForgetRequestRow, ObligationRow, OutboxRow, RunRow
from app.log import checkpoints, merkle
from app.registry.tables import ModelRow
from app.storage.tables import BlobRow

_DAY_S = 86400.0
AGE_BOUNDS_S = tuple(days * _DAY_S for days in (1, 3, 7, 14, 21, 28, 30, 45, 90))


def ledger_metrics(session: Session) -> Iterator[Metric]:
    """Yield the metrics of requests, runs, outbox, log and blobs."""
    parts: Sequence[Callable[[Session], Iterable[Metric]]] = (
        _requests,
        _ages,
        _deadlines,
        _obligations,
        _capacities,
        _runs,
        _active_runs,
        _outbox,
        _log,
        _shredding,
    )
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


def _requests(session: Session) -> Iterator[Metric]:
    family = _gauge("expunge_forget_requests", "Forget requests.", "state")
    for state, count in requests_by_state(session).items():
        family.add_metric((state,), count)
    yield family


def _ages(session: Session) -> Iterator[Metric]:
    ages = GaugeHistogramMetricFamily(
        "expunge_open_forget_request_age_seconds",
        "Age of the requests that are neither completed nor cancelled, since their receipt.",
        labels=("state",),
    )
    oldest = _gauge(
        "expunge_oldest_forget_request_age_seconds", "Age of the oldest open request.", "state"
    )
    state = ForgetRequestRow.state
    age_s = _seconds(func.clock_timestamp() - ForgetRequestRow.received_at)
    younger = [func.count().filter(age_s <= bound) for bound in AGE_BOUNDS_S]
    query = select(state, func.count(), func.sum(age_s), func.max(age_s), *younger)
    for name, count, total_s, oldest_s, *up_to in session.execute(
        query.where(IS_OPEN).group_by(state)
    ):
        bounds = [str(bound) for bound in AGE_BOUNDS_S]
        buckets = [*zip(bounds, up_to, strict=True), ("+Inf", count)]
        ages.add_metric((name,), buckets, gsum_value=total_s)
        oldest.add_metric((name,), oldest_s)
    yield ages
    yield oldest


def _deadlines(session: Session) -> Iterator[Metric]:
    left_s = _seconds(ForgetRequestRow.due_at - func.clock_timestamp())
    warned = func.count().filter(left_s > 0, ForgetRequestRow.due_soon_noted_at.is_not(None))
    query = select(func.min(left_s), warned).where(IS_OPEN)
    earliest_s, due_soon = session.execute(query).one()
    earliest = _gauge(
        "expunge_earliest_deadline_days",
        "Days until the earliest deadline of an open request, negative after it.",
    )
    if earliest_s is not None:
        earliest.add_metric((), earliest_s / _DAY_S)
    yield earliest
    yield GaugeMetricFamily(
        "expunge_forget_requests_due_soon",
        "Open requests whose deadline warning was sent and that are not overdue.",
        value=due_soon,
    )
    yield GaugeMetricFamily(
        "expunge_forget_requests_overdue",
        "Open requests past their deadline.",
        value=overdue_requests(session),
    )


def _obligations(session: Session) -> Iterator[Metric]:
    family = _gauge("expunge_obligations", "Obligations by model and state.", "model", "state")
    counted = (
        select(ObligationRow.model_id, ObligationRow.state, func.count().label("count"))
        .group_by(ObligationRow.model_id, ObligationRow.state)
        .subquery()
    )
    query = select(ModelRow.name, counted.c.state, counted.c.count).join(
        counted, counted.c.model_id == ModelRow.id
    )
    for model, state, count in session.execute(query):
        family.add_metric((model, state), count)
    yield family


def _capacities(session: Session) -> Iterator[Metric]:
    family = _gauge(
        "expunge_model_capacity_records",
        "How many more records the present version covers without a run.",
        "model",
    )
    for name, capacity in capacities(session):
        family.add_metric((name,), capacity.left)
    yield family


def _runs(session: Session) -> Iterator[Metric]:
    runs = _gauge("expunge_runs", "Runs.", "kind", "state")
    attempts = _gauge("expunge_run_attempts", "Attempts at runs, in total.", "kind", "state")
    query = select(RunRow.kind, RunRow.state, func.count(), func.sum(RunRow.attempt))
    for kind, state, count, total in session.execute(query.group_by(RunRow.kind, RunRow.state)):
        runs.add_metric((kind, state), count)
        attempts.add_metric((kind, state), total)
    yield runs
    yield attempts


def _active_runs(session: Session) -> Iterator[Metric]:
    attempt = _gauge(
        "expunge_active_run_attempt",
        "The current attempt at a queued or active run.",
        "model",
        "kind",
        "state",
    )
    labels = ("model", "kind", "phase")
    steps = CounterMetricFamily(
        "expunge_run_steps",
        "Steps taken in a run's current phase; its rate is the steps per second.",
        labels=labels,
    )
    planned = _gauge("expunge_run_planned_steps", "Most steps of a run's current phase.", *labels)
    row = RunRow
    query = select(
        ModelRow.name, row.kind, row.state, row.attempt, row.phase, row.step, row.total_steps
    ).join(ModelRow, ModelRow.id == row.model_id)
    for run in session.execute(query.where(row.state.in_(ACTIVE_RUN_STATES))):
        attempt.add_metric((run.name, run.kind, run.state), run.attempt)
        if run.phase is None:
            continue
        if run.step is not None:
            steps.add_metric((run.name, run.kind, run.phase), run.step)
        if run.total_steps is not None:
            planned.add_metric((run.name, run.kind, run.phase), run.total_steps)
    yield attempt
    yield steps
    yield planned


def _outbox(session: Session) -> Iterator[Metric]:
    depth = _gauge("expunge_outbox_depth", "Outbox rows that wait for the dispatcher.", "topic")
    oldest = _gauge(
        "expunge_outbox_oldest_age_seconds", "How long the oldest outbox row is due.", "topic"
    )
    late_s = _seconds(func.clock_timestamp() - func.min(OutboxRow.available_at))
    query = select(OutboxRow.topic, func.count(), func.greatest(late_s, 0.0))
    found = {topic: numbers for topic, *numbers in session.execute(query.group_by(OutboxRow.topic))}
    for topic in sorted({*Topic, *found}):
        count, oldest_s = found.get(topic, (0, 0.0))
        depth.add_metric((topic,), count)
        oldest.add_metric((topic,), oldest_s)
    yield depth
    yield oldest


def _log(session: Session) -> Iterator[Metric]:
    entries = merkle.size(session)
    signed, age_s = checkpoints.newest(session)
    yield GaugeMetricFamily("expunge_log_entries", "Entries of the log.", value=entries)
    yield GaugeMetricFamily(
        "expunge_log_unsigned_entries",
        "Entries that no signed checkpoint covers.",
        value=entries - signed,
    )
    age = _gauge("expunge_log_checkpoint_age_seconds", "Since the newest checkpoint was signed.")
    if age_s is not None:
        age.add_metric((), age_s)
    yield age


def _shredding(session: Session) -> Iterator[Metric]:
    doomed = BlobRow.state == BlobState.DOOMED
    left = (BlobRow.state == BlobState.SHREDDED) & BlobRow.object_deleted_at.is_(None)
    yield GaugeMetricFamily(
        "expunge_blobs_to_shred",
        "Blobs given up whose keys still exist.",
        value=session.scalar(select(func.count()).where(doomed)) or 0,
    )
    yield GaugeMetricFamily(
        "expunge_objects_to_delete",
        "Stored objects whose keys are destroyed.",
        value=session.scalar(select(func.count()).where(left)) or 0,
    )


def _seconds(interval: ColumnElement[Any]) -> ColumnElement[float]:
    return cast(func.extract("epoch", interval), Float)


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, labels=labels)
