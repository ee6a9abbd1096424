"""The ledger's statistics as metrics."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
)
from sqlalchemy.orm import Session

from app.ledger.outbox import Topic
from app.monitoring import figures


def ledger_metrics(session: Session) -> Iterator[Metric]:
    """Yield the metrics of requests, runs, outbox, log and blobs."""
    parts: Sequence[Callable[[Session], Iterable[Metric]]] = (
        _requests,
        _ages,
        _deadlines,
        _obligations,
        _runs,
        _active_runs,
        _outbox,
        _log,
        _shredding,
    )
    for part in parts:
        yield from part(session)


def _requests(session: Session) -> Iterator[Metric]:
    family = _gauge("expunge_forget_requests", "Forget requests.", "state")
    for state, count in figures.requests_by_state(session).items():
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
    for state, found in figures.open_request_ages(session).items():
        bounds = [str(bound) for bound in figures.AGE_BOUNDS_S]
        buckets = [*zip(bounds, found.up_to, strict=True), ("+Inf", found.count)]
        ages.add_metric((state,), buckets, gsum_value=found.sum_s)
        oldest.add_metric((state,), found.oldest_s)
    yield ages
    yield oldest


def _deadlines(session: Session) -> Iterator[Metric]:
    found = figures.deadlines(session)
    earliest = _gauge(
        "expunge_earliest_deadline_days",
        "Days until the earliest deadline of an open request, negative after it.",
    )
    if found.earliest_s is not None:
        earliest.add_metric((), found.earliest_s / figures.DAY_S)
    yield earliest
    yield GaugeMetricFamily(
        "expunge_forget_requests_due_soon",
        "Open requests whose deadline warning was sent and that are not overdue.",
        value=found.warned,
    )
    yield GaugeMetricFamily(
        "expunge_forget_requests_overdue",
        "Open requests past their deadline.",
        value=found.overdue,
    )


def _obligations(session: Session) -> Iterator[Metric]:
    family = _gauge("expunge_obligations", "Obligations by model and state.", "model", "state")
    for model, state, count in figures.obligations(session):
        family.add_metric((model, state), count)
    yield family


def _runs(session: Session) -> Iterator[Metric]:
    runs = _gauge("expunge_runs", "Runs.", "kind", "state")
    attempts = _gauge("expunge_run_attempts", "Attempts at runs, in total.", "kind", "state")
    for group in figures.run_groups(session):
        runs.add_metric((group.kind, group.state), group.count)
        attempts.add_metric((group.kind, group.state), group.attempts)
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
    for run in figures.active_runs(session):
        attempt.add_metric((run.model, run.kind, run.state), run.attempt)
        if run.phase is None:
            continue
        if run.step is not None:
            steps.add_metric((run.model, run.kind, run.phase), run.step)
        if run.total_steps is not None:
            planned.add_metric((run.model, run.kind, run.phase), run.total_steps)
    yield attempt
    yield steps
    yield planned


def _outbox(session: Session) -> Iterator[Metric]:
    waiting = {topic.topic: topic for topic in figures.outbox(session)}
    depth = _gauge("expunge_outbox_depth", "Outbox rows that wait for the dispatcher.", "topic")
    oldest = _gauge(
        "expunge_outbox_oldest_age_seconds", "How long the oldest outbox row is due.", "topic"
    )
    for name in sorted({*Topic, *waiting}):
        found = waiting.get(name)
        depth.add_metric((name,), 0 if found is None else found.count)
        oldest.add_metric((name,), 0.0 if found is None else found.oldest_s)
    yield depth
    yield oldest


def _log(session: Session) -> Iterator[Metric]:
    log = figures.log_size(session)
    yield GaugeMetricFamily("expunge_log_entries", "Entries of the log.", value=log.entries)
    yield GaugeMetricFamily(
        "expunge_log_unsigned_entries",
        "Entries that no signed checkpoint covers.",
        value=log.unsigned,
    )
    age = _gauge("expunge_log_checkpoint_age_seconds", "Since the newest checkpoint was signed.")
    if log.checkpoint_age_s is not None:
        age.add_metric((), log.checkpoint_age_s)
    yield age


def _shredding(session: Session) -> Iterator[Metric]:
    waiting = figures.shredding(session)
    yield GaugeMetricFamily(
        "expunge_blobs_to_shred", "Blobs given up whose keys still exist.", value=waiting.keys
    )
    yield GaugeMetricFamily(
        "expunge_objects_to_delete",
        "Stored objects whose keys are destroyed.",
        value=waiting.objects,
    )


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, labels=labels)
