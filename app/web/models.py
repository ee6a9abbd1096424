"""``/models``: served models, their versions, and the contents of their certificates."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from app.api.protocol.access import ServicesOf
from app.api.targets import target_answers
from app.api.versions import Number, weights_answer
from app.certificates.bundle import MEDIA_TYPE
from app.certificates.plain_words import assumptions_in_words, guarantee_in_words, limits_in_words
from app.certificates.signing import statement_of
from app.datasets.tables import DatasetRow
from app.domain.architectures.ensemble import Member
from app.domain.architectures.words import members_by_version, members_in_words, network_in_words
from app.domain.policy import Policy
from app.domain.release import certificate_filename, weights_filename
from app.domain.tasks.words import metric_in_words, task_in_words
from app.ledger.certificates import bundles, issued
from app.ledger.certificates.capacities import capacity_of
from app.ledger.views import run_views
from app.models import serving
from app.registry import repository as registry
from app.registry.tables import ModelRow, VersionRow
from app.registry.tasks import task_of
from app.web import pages, queries
from app.web.access import ModelsReader
from app.web.figures.charts import Chart, Series, lines
from app.web.figures.queries import costs_of_model
from app.web.rendering import render

router = pages.router()

_FEWEST_SCORES = 2


@dataclass(frozen=True)
class ModelLine:
    """A model in a list: what it serves now, and how many obligations are unmet."""

    name: str
    dataset: str
    version: int | None
    epsilon: float
    delta: float
    owed: int
    archived_at: datetime | None


def model_lines(session: Session) -> Sequence[ModelLine]:
    """Return all models by name."""
    owed = queries.owed_by_model(session)
    return [_line(session, model, owed.get(model.id, 0)) for model in registry.models(session)]


@router.get("/models")
def show_all(services: ServicesOf, visitor: ModelsReader) -> Response:
    """List models."""
    with services.database.snapshot() as session:
        found = model_lines(session)
    return render("models.html", visitor, lines=found)


@router.get("/models/{name}")
def show(name: str, services: ServicesOf, visitor: ModelsReader) -> Response:
    """Show one model: its policy, versions and newest runs."""
    with services.database.snapshot() as session:
        model = registry.model_named(session, name)
        line = _line(session, model, queries.owed_by_model(session).get(model.id, 0))
        released = registry.released_versions(session, model.id)
        runs = run_views.page(session, model=name, limit=10)
        policy = Policy.from_json(model.policy)
        capacity = capacity_of(session, model)
        task = task_in_words(task_of(model))
        network = network_in_words(model.architecture)
        targets = target_answers(session, services, model)
        gradients, met = costs_of_model(session, model.id)
        recipe = dict(model.recipe)
    metric, scores = _scores(released)
    return render(
        "model.html",
        visitor,
        line=line,
        policy=policy,
        capacity=capacity,
        task=task,
        network=network,
        versions=released,
        targets=targets,
        lines=runs,
        gradients=gradients,
        met=met,
        recipe=recipe,
        metric=metric,
        scores=scores,
    )


@router.get("/models/{name}/versions/{number}")
def show_version(
    name: str, number: Number, services: ServicesOf, visitor: ModelsReader
) -> Response:
    """Show the contents of a version's certificate, and let the browser verify it."""
    with services.database.transaction() as session:
        version = _version(session, name, number)
        predicate = _predicate(session, version)
    members = [Member.from_json(each) for each in predicate.get("members") or ()]
    return render(
        "version.html",
        visitor,
        name=name,
        version=version,
        predicate=predicate,
        members=members_in_words(members, version=number) if members else None,
        trained=members_by_version(members),
        guarantee=guarantee_in_words(predicate),
        limits=limits_in_words(predicate),
        assumptions=assumptions_in_words(predicate),
        weights=weights_filename(name, number),
    )


@router.get("/models/{name}/versions/{number}/certificate")
def certificate(name: str, number: Number, services: ServicesOf, _: ModelsReader) -> JSONResponse:
    """Return a version's bundle, as the API does."""
    with services.database.transaction() as session:
        version = _version(session, name, number)
        row = issued.certificate(session, version.certificate_id)
        bundle = bundles.bundle_of(
            session, row, signer=services.signer, witnesses=services.witnesses
        )
    filename = certificate_filename(name, number)
    return JSONResponse(
        bundle,
        media_type=MEDIA_TYPE,
        headers={"Content-Disposition": f'attachment; filename="{filename}"'},
    )


@router.get("/models/{name}/versions/{number}/weights")
def weights(
    name: str, number: Number, request: Request, services: ServicesOf, _: ModelsReader
) -> Response:
    """Return the weights of a served version."""
    return weights_answer(request, services, name, number)


def _scores(released: Sequence[VersionRow]) -> tuple[str, Chart | None]:
    """Return the newest headline metric in words, and a chart of it over the versions."""
    headline = next((v.evaluation["headline"] for v in released if "headline" in v.evaluation), "")
    oldest_first = released[::-1]
    values = [(v.evaluation.get("metrics") or {}).get(headline) for v in oldest_first]
    if sum(value is not None for value in values) < _FEWEST_SCORES:
        return "", None
    metric = metric_in_words(headline)
    names = [f"v{version.number}" for version in oldest_first]
    return metric, lines(names, [Series("", values)], title=f"{metric} of each version")


def _line(session: Session, model: ModelRow, owed: int) -> ModelLine:
    current = serving.find_current_version(session, model)
    policy = Policy.from_json(model.policy)
    return ModelLine(
        name=model.name,
        dataset=session.get_one(DatasetRow, model.dataset_id).name,
        version=None if current is None else current.number,
        epsilon=policy.epsilon,
        delta=policy.delta,
        owed=owed,
        archived_at=model.archived_at,
    )


def _version(session: Session, name: str, number: int) -> VersionRow:
    return registry.version_numbered(session, registry.model_named(session, name), number)


def _predicate(session: Session, version: VersionRow) -> dict[str, Any]:
    envelope = issued.certificate(session, version.certificate_id).envelope
    return dict(statement_of(envelope)["predicate"])
