"""``/figures``: how requests went, week by week, and what they cost."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import Response
from sqlalchemy.orm import Session

from app.api.protocol.access import ServicesOf
from app.domain.scopes import Scope
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.web import pages
from app.web.access import AnyVisitor
from app.web.figures import queries
from app.web.figures.queries import Week
from app.web.rendering import render

router = pages.router()

WEEKS = 12


@router.get("/figures")
def show(services: ServicesOf, visitor: AnyVisitor) -> Response:
    """Show the figures that the key may see."""
    weeks = queries.last_weeks(WEEKS, now=datetime.now(UTC))
    requests = runs = None
    with services.database.snapshot() as session:
        if visitor.caller.allows(Scope.FORGET_READ):
            requests = _of_requests(session, weeks)
        if visitor.caller.allows(Scope.MODELS_READ):
            runs = _of_runs(session, weeks)
    return render("figures.html", visitor, weeks=names_of(weeks), requests=requests, runs=runs)


def names_of(weeks: Sequence[Week]) -> list[str]:
    """Return the weeks as they stand under a chart."""
    return [f"{week.day} {week:%b}" for week in weeks]


def by_week(weeks: Sequence[Week], found: Mapping[Week, float]) -> list[tuple[str, float]]:
    """Return a number for each week, 0 where none was found."""
    return [(name, found.get(week, 0)) for name, week in zip(names_of(weeks), weeks, strict=True)]


def _of_requests(session: Session, weeks: Sequence[Week]) -> dict[str, Any]:
    found = queries.requests_by_week(session, weeks[0])
    hours = queries.hours_to_certificate(session, weeks[0])
    return {
        "received": by_week(weeks, {week: row.received for week, row in found.items()}),
        "met": [found[week].met_percent if week in found else None for week in weeks],
        "medians": [hours[week][0] if week in hours else None for week in weeks],
        "p95s": [hours[week][1] if week in hours else None for week in weeks],
    }


def _of_runs(session: Session, weeks: Sequence[Week]) -> dict[str, Any]:
    costs = queries.costs_by_week(session, weeks[0])
    against = _against_retraining(session, weeks[0])
    return {
        "spent": by_week(weeks, {week: row[1] for week, row in costs.items()}),
        "counts": [costs[week][2] if week in costs else 0 for week in weeks],
        "against": against,
        "percents": [(name, 100 * taken / anew if anew else 0.0) for name, taken, anew in against],
    }


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
