"""Numbers of the last weeks: how requests went, and what runs cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Float, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.states import ObligationState, RequestState, RunKind, RunState
from app.ledger.tables import ForgetRequestRow, ObligationRow, RunRow
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import ShardRow

WEEKS = 12

Week = datetime
_GRADIENTS = cast(RunRow.plan["predicted"]["gradient_computations"].astext, Float)
# A run that did not report its ε met its plan's.
_EPSILON = func.coalesce(RunRow.epsilon, cast(RunRow.plan["epsilon"].astext, Float))


@dataclass(frozen=True)
class Requests:
    """Counts of forget requests: received, met in time, missed. One not yet due is neither."""

    received: int
    met: int
    missed: int

    @property
    def met_percent(self) -> float | None:
        """How many of those that are done or overdue were completed in time, in percent."""
        ended = self.met + self.missed
        return 100 * self.met / ended if ended else None


def last_weeks() -> list[Week]:
    """Return the Mondays that begin the last weeks, the present one last, in UTC."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    monday = today - timedelta(days=today.weekday())
    return [monday - timedelta(weeks=back) for back in reversed(range(WEEKS))]


def rows_of(weeks: Sequence[Week], found: Mapping[Week, Sequence[str]]) -> list[list[str]]:
    """Return a row for each week in which there was something: its name, and what was found."""
    return [[f"{week.day} {week:%b}", *found[week]] for week in weeks if week in found]


def records_by_week(session: Session, dataset_id: str, since: Week) -> Mapping[Week, int]:
    """Return how many records came in each week, of the shards that are stored."""
    week = _week(ShardRow.created_at)
    query = select(week, func.sum(ShardRow.rows)).where(
        ShardRow.dataset_id == dataset_id, ShardRow.created_at >= since
    )
    return {row[0]: int(row[1]) for row in session.execute(query.group_by(week))}


def requests_by_week(session: Session, since: Week) -> Mapping[Week, Requests]:
    """Return the requests of each week, by when they came."""
    row = ForgetRequestRow
    week = _week(row.received_at)
    in_time = row.completed_at <= row.due_at
    late = func.coalesce(row.completed_at, func.clock_timestamp()) > row.due_at
    query = (
        select(
            week.label("week"),
            func.count().label("received"),
            func.count().filter(in_time).label("met"),
            func.count().filter(late).label("missed"),
        )
        .where(row.received_at >= since)
        .group_by(week)
    )
    return {row[0]: Requests(*row[1:]) for row in session.execute(query)}


def hours_to_certificate(session: Session, since: Week) -> Mapping[Week, tuple[float, float]]:
    """Return median and 95th percentile of the hours until all models had certified a request.

    By the week in which it came. What needed no run took no time.
    """
    certified = (RequestState.CERTIFIED, RequestState.COMPLETED)
    ended = func.coalesce(func.max(RunRow.finished_at), ForgetRequestRow.received_at)
    taken = func.greatest(0.0, func.extract("epoch", ended - ForgetRequestRow.received_at) / 3600)
    each = (
        select(_week(ForgetRequestRow.received_at).label("week"), cast(taken, Float).label("hours"))
        .outerjoin(ObligationRow, ObligationRow.request_id == ForgetRequestRow.id)
        .outerjoin(RunRow, RunRow.id == ObligationRow.run_id)
        .where(ForgetRequestRow.received_at >= since, ForgetRequestRow.state.in_(certified))
        .group_by(ForgetRequestRow.id)
        .subquery()
    )
    median = func.percentile_cont(0.5).within_group(each.c.hours)
    p95 = func.percentile_cont(0.95).within_group(each.c.hours)
    query = select(each.c.week, median, p95).group_by(each.c.week)
    return {row[0]: (row[1], row[2]) for row in session.execute(query)}


def costs_by_week(session: Session, since: Week) -> Mapping[Week, tuple[float, float, int]]:
    """Return the gradients of published unlearning runs, the ε of all, and their number."""
    week = _week(RunRow.finished_at)
    query = select(week, func.sum(_GRADIENTS), func.sum(_EPSILON), func.count()).where(
        *_unlearned(), RunRow.finished_at >= since
    )
    return {
        row[0]: (row[1] or 0.0, row[2] or 0.0, row[3])
        for row in session.execute(query.group_by(week))
    }


def costs_of_model(session: Session, model_id: str) -> tuple[float, int]:
    """Return the gradients of a model's unlearning runs, and how many requests these met."""
    runs = select(RunRow.id, _GRADIENTS.label("gradients")).where(
        *_unlearned(), RunRow.model_id == model_id
    )
    found = runs.subquery()
    gradients = session.scalar(select(func.sum(found.c.gradients))) or 0.0
    met = select(func.count()).where(
        ObligationRow.run_id.in_(select(found.c.id)),
        ObligationRow.state == ObligationState.CERTIFIED,
    )
    return gradients, session.scalar(met) or 0


def costs_against_retraining(session: Session, since: Week) -> Mapping[str, float]:
    """Return models' gradients since then as a share of as many trainings on today's records.

    As many as runs that met requests; refills add to their cost.
    """
    met = func.count().filter(RunRow.kind == RunKind.UNLEARN)
    query = select(RunRow.model_id, func.sum(_GRADIENTS), met).where(
        *_unlearned(), RunRow.finished_at >= since
    )
    found = {row[0]: row[1:] for row in session.execute(query.group_by(RunRow.model_id))}
    shares: dict[str, float] = {}
    for model in registry.models(session):
        gradients, runs = found.get(model.id, (0.0, 0))
        remembered, _, _ = datasets.counts(session, model.dataset_id) if runs else (0, 0, 0)
        kept = 1 - float(model.recipe.get("held_out_fraction", 0.0))
        anew = runs * remembered * kept * float(model.recipe.get("epochs", 1))
        if anew:
            shares[model.id] = (gradients or 0.0) / anew
    return shares


def _unlearned() -> tuple[ColumnElement[bool], ...]:
    kinds = (RunKind.UNLEARN, RunKind.REFILL)
    return (RunRow.kind.in_(kinds), RunRow.state == RunState.PUBLISHED)


def _week(moment: InstrumentedAttribute[Any]) -> ColumnElement[Week]:
    return func.date_trunc("week", moment, "UTC")
