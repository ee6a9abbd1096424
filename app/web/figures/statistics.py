"""``/figures``: how requests went, week by week, and what they cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fastapi import Response
from sqlalchemy.orm import Session

from app.api.protocol.access import ServicesOf
from app.datasets import repository as datasets
from app.domain.scopes import Scope
from app.registry import repository as registry
from app.web import pages
from app.web.access import AnyVisitor
from app.web.figures import queries
from app.web.figures.charts import Chart, Series, bars, lines
from app.web.figures.queries import Week
from app.web.rendering import count, render

router = pages.router()

WEEKS = 12


@dataclass(frozen=True)
class Figure:
    """A chart with its caption and its numbers as a table; no drawing where there are none."""

    title: str
    caption: str
    drawing: Chart | None
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@router.get("/figures")
def show(services: ServicesOf, visitor: AnyVisitor) -> Response:
    """Show the figures that the key may see."""
    weeks = queries.last_weeks(WEEKS, now=datetime.now(UTC))
    figures: list[Figure] = []
    with services.database.snapshot() as session:
        if visitor.caller.allows(Scope.FORGET_READ):
            figures += _of_requests(session, weeks)
        if visitor.caller.allows(Scope.MODELS_READ):
            figures += _of_runs(session, weeks)
    return render("figures.html", visitor, figures=figures, weeks=WEEKS)


def names_of(weeks: Sequence[Week]) -> list[str]:
    """Return the weeks as they stand under a chart."""
    return [f"{week.day} {week:%b}" for week in weeks]


def by_week(weeks: Sequence[Week], found: Mapping[Week, float]) -> list[tuple[str, float]]:
    """Return a number for each week, 0 where none was found."""
    return [(name, found.get(week, 0)) for name, week in zip(names_of(weeks), weeks, strict=True)]


def _of_requests(session: Session, weeks: Sequence[Week]) -> list[Figure]:
    names = names_of(weeks)
    found = queries.requests_by_week(session, weeks[0])
    hours = queries.hours_to_certificate(session, weeks[0])
    received = by_week(weeks, {week: row.received for week, row in found.items()})
    met = [_share(found[week].met, found[week].missed) if week in found else None for week in weeks]
    medians = [hours[week][0] if week in hours else None for week in weeks]
    p95s = [hours[week][1] if week in hours else None for week in weeks]
    return [
        Figure(
            "Requests a week",
            "Forget requests by the week in which they came.",
            bars(received, title="Requests a week"),
            ("Week from", "Requests"),
            [(name, count(value)) for name, value in received],
        ),
        Figure(
            "Time to certificate",
            "Hours until all models had certified a request: the median, and dashed the 95th "
            "percentile.",
            lines(
                names,
                [Series("median", medians), Series("95th percentile", p95s)],
                title="Time to certificate",
                unit=" h",
            ),
            ("Week from", "Median", "95th percentile"),
            [(n, _hours(m), _hours(p)) for n, m, p in zip(names, medians, p95s, strict=True)],
        ),
        Figure(
            "Deadlines met",
            "Of the requests that came in a week and are done or overdue: how many were completed "
            "in time.",
            lines(names, [Series("", met)], title="Deadlines met", unit=" %"),
            ("Week from", "Met in time"),
            [
                (name, "–" if share is None else f"{share:.0f} %")
                for name, share in zip(names, met, strict=True)
            ],
        ),
    ]


def _of_runs(session: Session, weeks: Sequence[Week]) -> list[Figure]:
    costs = queries.costs_by_week(session, weeks[0])
    spent = by_week(weeks, {week: row[1] for week, row in costs.items()})
    against = _against_retraining(session, weeks[0])
    names = [name for name, _, _ in against]
    ratios = [100 * gradients / anew if anew else None for _, gradients, anew in against]
    return [
        Figure(
            "ε spent",
            "The ε that was certified by runs that answered requests, added up over all models and "
            "each week. Models are told apart by their certificates; the sum shows where the "
            "noise went.",
            bars(spent, title="ε spent a week"),
            ("Week from", "ε", "Runs"),
            [
                (name, f"{value:.4g}", str(costs[week][2] if week in costs else 0))
                for week, (name, value) in zip(weeks, spent, strict=True)
            ],
        ),
        Figure(
            "Cost against retraining",
            "The gradients that runs needed, as a share of what as many trainings on the present "
            "records would need.",
            bars(
                [(name, ratio or 0.0) for name, ratio in zip(names, ratios, strict=True)],
                title="Cost against retraining",
                unit=" %",
            ),
            ("Model", "Gradients", "Retraining each time"),
            [(name, count(gradients), count(anew)) for name, gradients, anew in against],
        ),
    ]


def _against_retraining(session: Session, since: Week) -> list[tuple[str, float, float]]:
    found = queries.gradients_by_model(session, since)
    compared: list[tuple[str, float, float]] = []
    for model in registry.models(session):
        if model.id in found:
            gradients, runs = found[model.id]
            remembered, _, _ = datasets.counts(session, model.dataset_id)
            kept = 1 - float(model.recipe.get("held_out_fraction", 0.0))
            once = remembered * kept * float(model.recipe.get("epochs", 1))
            compared.append((model.name, gradients, runs * once))
    return compared


def _share(met: int, missed: int) -> float | None:
    return None if met + missed == 0 else 100 * met / (met + missed)


def _hours(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} h"
