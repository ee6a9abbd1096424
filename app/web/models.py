"""``/models``: models, their versions, what their certificates state; retraining and archiving."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.api.protocol.access import Make, ServicesOf
from app.api.targets import target_answers
from app.api.versions import Number, weights_answer
from app.delivery import derivatives
from app.domain.architectures import Member, members_by_version, members_in_words, out_of
from app.domain.errors import GoneError, NotReadyError
from app.domain.policy import Policy
from app.domain.release import certificate_filename, weights_filename
from app.domain.scores import metric_in_words, score_of, warnings_of, why_too_low
from app.domain.states import UNMET_OBLIGATION_STATES
from app.evidence.certificates.bundle import MEDIA_TYPE
from app.ledger.certificates import bundles, issuing
from app.ledger.certificates.present_release import capacity_of
from app.ledger.models import endings, retraining, serving
from app.ledger.tables import ObligationRow
from app.ledger.views import run_views
from app.registry import repository as registry
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import ModelRow, VersionRow
from app.registry.tasks import task_of
from app.web import figures, pages
from app.web.access import ModelsReader, ModelsSender
from app.web.figures import Chart, by_name
from app.web.pages import render

router = pages.router()

_FEWEST_SCORES = 2


@router.get("/models")
def show_all(services: ServicesOf, visitor: ModelsReader) -> Response:
    """List models by name: what each serves now, how many obligations are unmet, and its cost."""
    with services.database.snapshot() as session:
        owed = _owed_by_model(session)
        costs = figures.costs_against_retraining(session, figures.last_weeks()[0])
        lines = [
            _line(session, model, owed.get(model.id, 0))
            | {"cost": costs.get(model.id), "scores": _all_scores(session, model)}
            for model in registry.models(session)
        ]
    return render("models/models.html", visitor, lines=lines, weeks=figures.WEEKS)


@router.get("/models/{name}")
def show(name: str, services: ServicesOf, visitor: ModelsReader) -> Response:
    """Show one model: its policy, versions and newest runs."""
    with services.database.snapshot() as session:
        model = registry.model_named(session, name)
        released = registry.released_versions(session, model.id)
        gradients, met = figures.costs_of_model(session, model.id)
        metric, scores = _scores(released, Policy.from_json(model.policy))
        members = registry.members_of(registry.head_version(session, model))
        return render(
            "models/model.html",
            visitor,
            line=_line(session, model, _owed_by_model(session).get(model.id, 0)),
            policy=Policy.from_json(model.policy),
            capacity=capacity_of(session, model),
            task=task_of(model),
            versions=released,
            targets=target_answers(session, services, model),
            derivatives=derivatives.of_model(session, model.id),
            runs=run_views.page(session, model=name, limit=10),
            gradients=gradients,
            met=met,
            metric=metric,
            scores=scores,
            members=len(members),
            active=len(members) - len(out_of(members)),
            refill_at=retraining.refill_due_at(session, model),
        )


@router.get("/models/{name}/versions/{number}")
def show_version(
    name: str, number: Number, services: ServicesOf, visitor: ModelsReader
) -> Response:
    """Show the contents of a version's certificate."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        version = registry.version_numbered(session, model, number)
        served, unserved = _served(session, model)
        predicate = issuing.predicate_of(session, version.certificate_id)
    members = [Member.from_json(each) for each in predicate.get("members") or ()]
    return render(
        "models/version.html",
        visitor,
        name=name,
        version=version,
        is_served=version == served,
        reason=version.reason or unserved,
        predicate=predicate,
        members=members_in_words(members, version=number) if members else None,
        trained=members_by_version(members),
        out=members_by_version(members, out=True),
        weights=weights_filename(name, number),
        certificate=certificate_filename(name, number),
    )


@router.get("/models/{name}/versions/{number}/certificate")
def certificate(name: str, number: Number, services: ServicesOf, _: ModelsReader) -> Response:
    """Return a version's bundle, as the API does."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        version = registry.version_numbered(session, model, number)
        row = issuing.certificate(session, version.certificate_id)
        bundle = bundles.bundle_of(
            session, row, signer=services.signer, witnesses=services.witnesses
        )
    return pages.attachment(bundle, certificate_filename(name, number), media_type=MEDIA_TYPE)


@router.get("/models/{name}/versions/{number}/weights")
def weights(
    name: str, number: Number, request: Request, services: ServicesOf, _: ModelsReader
) -> Response:
    """Return the weights of a served version."""
    return weights_answer(request, services, name, number)


@router.post("/models/{name}/retrain")
def retrain(name: str, services: ServicesOf, _: ModelsSender, make: Make) -> Response:
    """Train a model anew on the records that are there now."""
    run = retraining.retrain(services.database, name, make=make)
    return pages.redirect(f"/runs/{run.id}")


@router.post("/models/{name}/archive")
def archive(name: str, services: ServicesOf, _: ModelsSender) -> Response:
    """Take a model out of service for good."""
    with services.database.transaction() as session:
        endings.archive_model(session, name)
    return pages.redirect(f"/models/{name}")


def _scores(released: Sequence[VersionRow], policy: Policy) -> tuple[str, Chart | None]:
    """Return the newest headline metric in words, and a chart of it over the versions."""
    headline = next((v.evaluation["headline"] for v in released if "headline" in v.evaluation), "")
    oldest_first = released[::-1]
    values = [score_of(version.evaluation, headline) for version in oldest_first]
    if sum(value is not None for value in values) < _FEWEST_SCORES:
        return "", None
    metric = metric_in_words(headline)
    chart = by_name(
        [f"v{version.number}" for version in oldest_first],
        values,
        title=f"{metric} of each version",
        baselines=[version.evaluation.get("baseline") for version in oldest_first],
        limit=policy.minimum_score,
    )
    return metric, chart


def _all_scores(session: Session, model: ModelRow) -> Chart | None:
    released = registry.released_versions(session, model.id)
    return _scores(released, Policy.from_json(model.policy))[1]


def _owed_by_model(session: Session) -> Mapping[str, int]:
    """Return the number of each model's unmet obligations, by model id."""
    query = select(ObligationRow.model_id, func.count()).where(
        ObligationRow.state.in_(UNMET_OBLIGATION_STATES)
    )
    rows = session.execute(query.group_by(ObligationRow.model_id))
    return {row[0]: row[1] for row in rows}


def _line(session: Session, model: ModelRow, owed: int) -> dict[str, Any]:
    current, reason = _served(session, model)
    dataset = session.get_one(DatasetRow, model.dataset_id).name
    version = None if current is None else current.number
    return {
        "model": model,
        "dataset": dataset,
        "version": version,
        "unserved": reason,
        "evaluation": {} if current is None else current.evaluation,
        "warnings": [] if current is None else warnings_of(current.evaluation),
        "too_low": None
        if current is None or current.evaluation.get("not_measured")
        else why_too_low(current.evaluation, Policy.from_json(model.policy).minimum_score),
        "owed": owed,
    }


def _served(session: Session, model: ModelRow) -> tuple[VersionRow | None, str]:
    """Return the version that is served, or why there is none."""
    try:
        return serving.current_version(session, model), ""
    except (NotReadyError, GoneError) as error:
        return None, str(error)
