"""Numbers of the last weeks, and charts.

Charts are drawn as SVG without scripts, by ``parts.html`` from the places that are worked out here.
Across, a place is a share of the width in percent; down, it is in pixels. So a chart is as wide as
its page, and its texts are as large on a telephone as on a desk. Each has its numbers in its
description and as a table beside it.
"""

import math
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
_TOP, _BOTTOM = 14.0, 170.0
_TICKS = 4
_MOST_LEVELS = 7
_MOST_NAMES = 6
_LONGEST_NAME = 16
_LETTER, _NARROWEST = 6.5, 230.0
"""In pixels: a letter of a name, and how wide a chart is on a small telephone."""
_LARGE = 100.0

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
    ended_at = func.coalesce(row.completed_at, func.clock_timestamp())
    late = (ended_at > row.due_at) & (row.state != RequestState.REFUSED)
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


Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line of a chart: its points, its class in the style sheet, and whether it has dots."""

    points: Sequence[Point]
    kind: str = "reported"
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """Where everything in a chart is.

    Attributes:
        label: what it shows, in words.
        ticks: heights, with the number that each stands for.
        names: where on the way across the names are, and whether a telephone has room for each.
        lines: its lines, the last one on top.
    """

    label: str
    ticks: Sequence[tuple[float, str]]
    names: Sequence[tuple[float, str, bool]]
    lines: Sequence[Line]


def by_name(
    names: Sequence[str],
    values: Sequence[float | None],
    *,
    title: str,
    baselines: Sequence[float | None] = (),
    limit: float | None = None,
) -> Chart | None:
    """Return a chart of a number for each name, from 0 up; None where there is no number.

    ``baselines`` are drawn beside them, and ``limit`` right across.
    """
    found = [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
    if not found:
        return None
    most = max(value for _, value in found)
    others = [value for value in (*baselines, limit) if value is not None]
    top = _round_up(max(most, *others) if others else most)
    levels = [top * tick / _TICKS for tick in range(_TICKS + 1)]
    across = [100 / len(names) * (i + 0.5) for i in range(len(names))]

    def points(numbers: Sequence[float | None]) -> list[Point]:
        placed = zip(across, numbers, strict=False)
        return [(x, _y(number / top)) for x, number in placed if number is not None]

    lines = [Line(points(baselines), "planned"), Line(points(values), dots=True)]
    label = f"{title}. at most {most:.4g}, {found[-1][1]:.4g} at {found[-1][0]}."
    if limit is not None:
        lines.insert(0, Line([(0, _y(limit / top)), (100, _y(limit / top))], "limit"))
        label += f" The limit is {limit:.4g}."
    return Chart(
        label=label,
        ticks=[
            (_y(level / top), f"{level:,.0f}" if level >= _LARGE else f"{level:.3g}")
            for level in levels
        ],
        names=_placed(across, names),
        lines=lines,
    )


def epsilon_curve(
    planned: Sequence[Point], reported: Sequence[Point], *, target: float, steps: int
) -> Chart | None:
    """Return a chart of ε on a logarithmic scale against steps; None without a point.

    ``planned`` and ``reported`` are of steps and ε; points whose ε is 0 are left out.
    """
    drawn = [[(step, e) for step, e in points if e > 0] for points in (planned, reported)]
    if not any(drawn):
        return None
    logs = [math.log10(e) for e in (target, *(e for points in drawn for _, e in points))]
    low = min(logs) - 0.15
    high = max(*logs, low + 0.8) + 0.05
    steps = max(steps, *(round(step) for points in drawn for step, _ in points))

    def place(step: float, epsilon: float) -> Point:
        return 100 * step / steps, _y((math.log10(epsilon) - low) / (high - low))

    known, said = (Line([place(*point) for point in points]) for points in drawn)
    state = "No step has been reported yet"
    if drawn[1]:
        step, epsilon = drawn[1][-1]
        state = f"After {step:.0f} of {steps} steps ε is {epsilon:.4g}"
    marks = sorted({round(part * steps / 4) for part in range(5)})
    return Chart(
        label=f"{state}; the target is {target:.4g}.",
        ticks=[(place(0, level)[1], f"{level:g}") for level in _levels(low, high)],
        names=[(100 * mark / steps, str(mark), True) for mark in marks],
        lines=[
            Line(known.points, "planned"),
            Line([place(0, target), place(steps, target)], "target"),
            Line(said.points, dots=True),
        ],
    )


def _levels(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each power of ten, or fewer where these are too many."""
    inside: list[float] = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(low), math.ceil(high))
        levels = [float(f"{digit}e{power}") for power in powers for digit in digits]
        inside = [level for level in levels if low <= math.log10(level) <= high]
        if len(inside) <= _MOST_LEVELS:
            return inside
    return inside[:: -(-len(inside) // _MOST_LEVELS)]


def _placed(across: Sequence[float], names: Sequence[str]) -> list[tuple[float, str, bool]]:
    every = -(-len(names) // _MOST_NAMES)
    shown = [
        (x, name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…")
        for x, name in zip(across[::every], names[::every], strict=True)
    ]
    widest = _LETTER * max(len(name) for _, name in shown)
    every = math.ceil(widest * len(shown) / _NARROWEST)
    return [(x, name, i % every == 0) for i, (x, name) in enumerate(shown)]


def _y(share: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * share


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 2, 4, 5 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** len(str(int(value))) / 10 if value >= 1 else 1.0
    while value < power:
        power /= 10
    return next((m * power for m in (1, 2, 4, 5, 8) if m * power >= value), 10 * power)
