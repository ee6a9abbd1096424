"""Metrics of where versions are published: what is not there yet, and what should be gone."""

from collections.abc import Iterator
from datetime import UTC, datetime

from prometheus_client.core import Metric
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.monitoring.gauges import gauge
from app.publishing import repository


def publishing_metrics(session: Session) -> Iterator[Metric]:
    """Yield how long targets have not held what they should, and which versions stay there."""
    now = session.scalars(select(func.clock_timestamp())).one()
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
