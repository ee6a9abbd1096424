"""``/v1/models``: definitions, and imported weights."""

from datetime import datetime
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field
from sqlalchemy.orm import Session

from app.api.policies import PolicyBody
from app.api.protocol.access import GuardedRoute, ModelsReader, ModelsWriter, ServicesOf
from app.api.protocol.bodies import RawBody, file_body
from app.api.protocol.conditions import IfMatch, require_match
from app.api.protocol.cursors import PageByName
from app.api.protocol.errors import problem_responses
from app.api.protocol.etags import etag_of
from app.api.protocol.headers import answer_headers
from app.api.protocol.leaving import Left
from app.api.protocol.schemas import Answer, Body, Name, Page
from app.api.protocol.waiting import Found, Prefer, answer_with_news, json_response
from app.api.protocol.watching import WatcherOf
from app.api.runs import RunAnswer
from app.api.versions import VersionAnswer, version_answer
from app.datasets.tables import DatasetRow
from app.domain.architecture import ArchitectureSpec
from app.domain.states import WeightsSource
from app.ledger import run_views
from app.ledger.changes import Kind
from app.models import definitions, policies, serving
from app.registry import repository as registry
from app.registry.tables import ModelRow

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=GuardedRoute)


class ModelBody(Body):
    """A model's definition."""

    name: Name = Field(examples=["digits-mlp"])
    dataset: Name = Field(examples=["digits"])
    architecture: dict[str, Any] = Field(examples=[{"name": "mlp", "options": {"hidden": [32]}}])
    recipe: dict[str, Any] = Field(
        default_factory=dict, examples=[{"epochs": 30, "learning_rate": 0.1}]
    )
    policy: PolicyBody = Field(default_factory=PolicyBody)
    weights: Literal["train", "upload"] = "train"


class ModelChange(Body):
    """Changes to a model's policy. ``adaptive`` and ``first_release`` cannot be changed."""

    policy: PolicyBody = Field(examples=[{"epsilon": 0.5, "window_s": 3600.0}])


class ModelAnswer(Answer):
    """A model, its current version and its newest run."""

    name: str
    dataset: str
    architecture: dict[str, Any]
    recipe: dict[str, Any]
    policy: dict[str, Any]
    weights: str
    certified: VersionAnswer | None
    latest_run: RunAnswer | None
    created_at: datetime


class ModelPage(Page[ModelAnswer]):
    """A page of models, by name."""


@router.post(
    "",
    status_code=201,
    responses=problem_responses(404, 409, 422) | answer_headers(201, "Location"),
)
def define_model(
    body: ModelBody, services: ServicesOf, _: ModelsWriter, left: Left, response: Response
) -> ModelAnswer:
    """Define a model and start its training, or wait for imported weights."""
    definition = definitions.ModelDefinition(
        name=body.name,
        dataset=body.dataset,
        architecture=ArchitectureSpec.from_json(body.architecture),
        recipe=body.recipe,
        policy=body.policy.to_policy(),
        weights_source=WeightsSource(body.weights),
    )
    defined = definitions.define_model(
        services.database,
        definition,
        max_parameters=services.settings.max_parameters,
        make=partial(services.planners.plan, left=left),
    )
    with services.database.transaction() as session:
        model = session.get_one(ModelRow, defined.id)
        response.headers["Location"] = f"/v1/models/{model.name}"
        return _model_answer(session, model)


@router.get("", responses=problem_responses())
def list_models(
    services: ServicesOf,
    _: ModelsReader,
    page: PageByName,
    dataset: str | None = None,
) -> ModelPage:
    """List models by name, optionally of one dataset."""
    with services.database.transaction() as session:
        rows = registry.models(session, dataset=dataset, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: row.name)
        items = [_model_answer(session, model) for model in rows]
        return ModelPage(items=items, next_cursor=next_cursor)


@router.get("/{name}", response_model=ModelAnswer, responses=problem_responses(404))
async def get_model(
    name: str, request: Request, watcher: WatcherOf, _: ModelsReader, prefer: Prefer = None
) -> Response:
    """Show one model; ``Prefer: wait=N`` waits for a change of its version or run."""

    def read(session: Session) -> Found:
        model = registry.model_named(session, name)
        return Found(model.id, _model_answer(session, model), is_final=False)

    return await answer_with_news(request, watcher, Kind.MODEL, read, prefer=prefer)


@router.patch("/{name}", responses=problem_responses(404, 409, 412, 422))
def change_model(
    name: str,
    body: ModelChange,
    services: ServicesOf,
    _: ModelsWriter,
    left: Left,
    if_match: IfMatch = None,
) -> ModelAnswer:
    """Change the given fields of a model's policy, from its next run on.

    An invalid change gets the answer 422, whatever ``If-Match`` names.
    """
    changes = body.policy.model_dump(exclude_unset=True)

    def require(session: Session, model: ModelRow) -> None:
        before = _model_answer(session, model)
        require_match(if_match, etag_of(bytes(json_response(before).body)))

    make = partial(services.planners.plan, left=left)
    changed = policies.change_policy(services.database, name, changes, require=require, make=make)
    with services.database.transaction() as session:
        return _model_answer(session, session.get_one(ModelRow, changed.id))


@router.put(
    "/{name}/weights",
    status_code=202,
    responses=problem_responses(404, 409, 413, 422),
    openapi_extra=file_body("application/octet-stream"),
)
def import_weights(
    name: str, services: ServicesOf, _: ModelsWriter, content: RawBody, left: Left
) -> ModelAnswer:
    """Upload safetensors weights trained elsewhere; a run then certifies their first release."""
    definitions.check_weights(content)
    make = partial(services.planners.plan, left=left)
    imported = definitions.import_weights(
        services.database, services.blobs, name, content, make=make
    )
    with services.database.transaction() as session:
        return _model_answer(session, session.get_one(ModelRow, imported.id))


def _model_answer(session: Session, model: ModelRow) -> ModelAnswer:
    head = serving.find_current_version(session, model)
    run = run_views.newest(session, model.id)
    return ModelAnswer(
        name=model.name,
        dataset=session.get_one(DatasetRow, model.dataset_id).name,
        architecture=model.architecture,
        recipe=model.recipe,
        policy=model.policy,
        weights=model.weights_source,
        certified=None if head is None else version_answer(model, head),
        latest_run=None if run is None else RunAnswer.model_validate(run),
        created_at=model.created_at,
    )
