"""``/v1/models``: definitions, and imported weights."""

from datetime import datetime
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field
from sqlalchemy.orm import Session

from app.api.plans import PolicyBody
from app.api.protocol.access import (
    Auditor,
    DefinitionReader,
    GuardedRoute,
    Make,
    ModelDefiner,
    ModelsReader,
    ModelsWriter,
    OwnModelsWriter,
    ServicesOf,
    require_own,
)
from app.api.protocol.bodies import RawBody, file_body
from app.api.protocol.conditions import IfMatch, etag_of, require_match
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Body, Name, Page, PageByName, shaped_as
from app.api.protocol.waiting import Found, Prefer, answer_with_news, json_response
from app.api.runs import RunAnswer
from app.api.versions import VersionAnswer, version_answer
from app.domain.architectures import ArchitectureSpec
from app.domain.recipes import ParameterGroup, TrainingRecipe
from app.domain.states import Scope, Verdict, WeightsSource
from app.evidence import log
from app.ledger.certificates.present_release import capacity_of
from app.ledger.models import definitions, endings, policies, retraining, serving
from app.ledger.models.recipes import ADAMW_RATE
from app.ledger.views import run_views
from app.ledger.views.changes import Kind
from app.registry import repository as registry
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import ModelRow
from app.services import Services


@shaped_as(ParameterGroup, parameters=(str, {"examples": ["*.bias"]}))
class ParameterGroupBody(Body):
    """Parameters with a learning rate or a weight decay of their own."""


@shaped_as(
    TrainingRecipe,
    optimizer=(Literal["sgd", "adamw"], {"default": "adamw"}),
    learning_rate=(float, {"default": ADAMW_RATE}),
    groups=(list[ParameterGroupBody], {"default": []}),
)
class RecipeBody(Body):
    """How a model is trained. A ``linear_head`` has defaults of its own: plain descent.

    A recipe that states a rate, a momentum or groups, and no optimizer, means ``sgd``, of which the
    default rate is 0.1. An ensemble has batches of 32, and a network whose backbone is trained on
    a rate of 0.001.
    """


router = APIRouter(prefix="/v1/models", tags=["models"], route_class=GuardedRoute)


class ModelBody(Body):
    """A model's definition."""

    name: Name = Field(description="Its name, in paths and files.", examples=["digits-mlp"])
    dataset: Name = Field(description="The dataset that it is trained on.", examples=["digits"])
    architecture: dict[str, Any] = Field(
        description="The network: `name`, `options`, `factory` and `backbone`; see docs/models.md.",
        examples=[{"name": "mlp", "options": {"hidden": [32]}}],
    )
    task: dict[str, Any] = Field(
        description="What it learns: `name`, `inputs`, `target` and more; see docs/tasks.md.",
        examples=[
            {
                "name": "classification",
                "inputs": [{"name": "pixels", "kind": "array", "shape": [8, 8]}],
                "target": {"column": "digit", "classes": [0, 1, 2]},
            }
        ],
    )
    recipe: RecipeBody = Field(
        default_factory=RecipeBody, examples=[{"epochs": 30, "learning_rate": 0.1}]
    )
    policy: PolicyBody = Field(default_factory=PolicyBody)
    weights: Literal["train", "upload"] = Field(
        default="train", description="Whether it is trained here, or its weights are uploaded."
    )

    def definition(self) -> definitions.ModelDefinition:
        """Return the validated definition."""
        return definitions.ModelDefinition(
            name=self.name,
            dataset=self.dataset,
            architecture=ArchitectureSpec.from_json(self.architecture),
            task=self.task,
            recipe=self.recipe.model_dump(exclude_unset=True),
            policy=self.policy.to_policy(),
            weights_source=WeightsSource(self.weights),
        )


class ModelChange(Body):
    """Changes to a model's policy. ``adaptive`` and ``first_release`` cannot be changed."""

    policy: PolicyBody = Field(examples=[{"epsilon": 0.5, "window_s": 3600.0}])


class ModelAnswer(Answer):
    """A model, its current version and its newest run."""

    name: str
    dataset: str
    architecture: dict[str, Any]
    task: dict[str, Any]
    recipe: dict[str, Any]
    policy: dict[str, Any]
    weights: str
    certified: VersionAnswer | None
    warnings: list[str] = Field(description="Those of the version that it serves.")
    capacity: int | None = Field(
        description="How many more records the present version covers without a run, at the worst "
        "position in its training. Null where a release covers no later request."
    )
    latest_run: RunAnswer | None
    created_at: datetime
    archived_at: datetime | None


class AuditBody(Body):
    """What an audit of a model found."""

    report_sha256: str = Field(
        pattern="^[0-9a-f]{64}$", description="Of the report that its auditor signed."
    )
    verdict: Verdict = Field(strict=False)


@router.post("", **answers(404, 409, 410, status=201, headers=("Location",)))
def define_model(
    body: ModelBody, services: ServicesOf, caller: ModelDefiner, make: Make, response: Response
) -> ModelAnswer:
    """Define a model and start its training, or wait for imported weights."""
    require_own(services, caller, body.dataset, Scope.MODELS_WRITE)
    defined = definitions.define_model(services.database, body.definition(), make=make)
    response.headers["Location"] = f"/v1/models/{body.name}"
    return _shown(services, defined.id)


@router.get("", **answers())
def list_models(
    services: ServicesOf,
    _: ModelsReader,
    page: PageByName,
    dataset: str | None = None,
) -> Page[ModelAnswer]:
    """List models by name, optionally of one dataset."""
    with services.database.snapshot() as session:
        rows = registry.models(session, dataset=dataset, after=page.after, limit=page.limit + 1)
        return page.answer(rows, lambda row: row.name, partial(_model_answer, session))


@router.get("/{name}", **answers(404), response_model=ModelAnswer)
async def get_model(
    name: str, request: Request, caller: DefinitionReader, prefer: Prefer = None
) -> Response:
    """Show one model; ``Prefer: wait=N`` waits for a change of its version or run."""

    def read(session: Session) -> Found:
        model = registry.model_named(session, name)
        return Found(model.id, _model_answer(session, model), is_final=False)

    return await answer_with_news(request, caller, Kind.MODEL, read, prefer=prefer)


@router.patch("/{name}", **answers(404, 409, 410, 412))
def change_model(
    name: str,
    body: ModelChange,
    services: ServicesOf,
    _: ModelsWriter,
    make: Make,
    if_match: IfMatch = None,
) -> ModelAnswer:
    """Change the given fields of a model's policy, from its next run on.

    An invalid change gets the answer 422, whatever ``If-Match`` names.
    """
    changes = body.policy.model_dump(exclude_unset=True)

    def require(session: Session, model: ModelRow) -> None:
        before = _model_answer(session, model)
        require_match(if_match, etag_of(bytes(json_response(before).body)))

    changed = policies.change_policy(services.database, name, changes, require=require, make=make)
    return _shown(services, changed.id)


@router.put(
    "/{name}/weights",
    **answers(404, 409, 410, 413, status=202),
    openapi_extra=file_body("application/octet-stream"),
)
def upload_model_weights(
    name: str, services: ServicesOf, _: ModelsWriter, content: RawBody, make: Make
) -> ModelAnswer:
    """Upload safetensors weights trained elsewhere; a run then certifies their first release."""
    definitions.check_weights(content)
    imported = definitions.import_weights(
        services.database, services.blobs, name, content, make=make
    )
    return _shown(services, imported.id)


@router.post("/{name}/retrain", **answers(404, 409, 410, status=202, headers=("Location",)))
def retrain_model(
    name: str, services: ServicesOf, _: ModelsWriter, make: Make, response: Response
) -> ModelAnswer:
    """Train a model anew on the records that are there now; it serves its version until then.

    The new version begins a new history. It is the answer to open forget requests, whose records it
    never reads; those that come while it is trained are met by the next run.
    """
    run = retraining.retrain(services.database, name, make=make)
    response.headers["Location"] = f"/v1/runs/{run.id}"
    return _shown(services, run.model_id)


@router.post("/{name}/refill", **answers(404, 409, 410, status=202, headers=("Location",)))
def refill_model(
    name: str, services: ServicesOf, _: ModelsWriter, make: Make, response: Response
) -> ModelAnswer:
    """Train the members of an ensemble that are out, all together, on what is retained now.

    Requests that come meanwhile are met beside it, without a training where the policy says so.
    """
    run = retraining.refill(services.database, name, make=make)
    response.headers["Location"] = f"/v1/runs/{run.id}"
    with services.database.snapshot() as session:
        return _model_answer(session, session.get_one(ModelRow, run.model_id))


@router.post("/{name}/archive", **answers(404, 409, 410))
def archive_model(name: str, services: ServicesOf, _: OwnModelsWriter) -> ModelAnswer:
    """Take a model out of service for good: its weights are shredded, its certificates stay.

    A run that is going ends, and open forget requests are told that the model is gone.
    """
    with services.database.transaction() as session:
        model = endings.archive_model(session, name)
    return _shown(services, model.id)


@router.delete("/{name}", **answers(404, 409, 410, status=204))
def delete_model(name: str, services: ServicesOf, _: ModelsWriter) -> None:
    """Delete a model that has released nothing; its name is free again."""
    with services.database.transaction() as session:
        endings.delete_model(session, name)


@router.post("/{name}/audits", **answers(404, status=204))
def report_audit(name: str, body: AuditBody, services: ServicesOf, _: Auditor) -> None:
    """Write the digest and the verdict of an audit's report to the log."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        log.append(session, "model.audited", model=model.id, **body.model_dump())


def _shown(services: Services, model_id: str) -> ModelAnswer:
    with services.database.snapshot() as session:
        return _model_answer(session, session.get_one(ModelRow, model_id))


def _model_answer(session: Session, model: ModelRow) -> ModelAnswer:
    head = serving.find_current_version(session, model)
    capacity = capacity_of(session, model)
    run = run_views.newest(session, model.id)
    certified = None if head is None else version_answer(model, head, served=head)
    return ModelAnswer.of(
        model,
        dataset=session.get_one(DatasetRow, model.dataset_id).name,
        weights=model.weights_source,
        certified=certified,
        warnings=[] if certified is None else certified.warnings,
        capacity=None if capacity is None else capacity.left,
        latest_run=None if run is None else RunAnswer.of(run),
    )
