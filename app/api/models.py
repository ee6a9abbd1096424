"""``/v1/models``: definitions, weights from elsewhere, and certified versions."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from pydantic import Field
from sqlalchemy.orm import Session

from app.api.access import ModelsReader, ModelsWriter, ServicesOf
from app.api.certificates import BundleAnswer, Since
from app.api.datasets import LimitedBody
from app.api.errors import problem_responses
from app.api.policies import PolicyBody
from app.api.runs import RunAnswer, run_answer
from app.api.schemas import Answer, Body, Name
from app.datasets.tables import DatasetRow
from app.domain.architecture import ArchitectureSpec
from app.domain.states import VersionState, WeightsSource
from app.ledger import bundles, lineage, repository, serving
from app.registry import repository as registry
from app.registry.tables import ModelRow, VersionRow

router = APIRouter(prefix="/v1/models", tags=["models"])
_CHUNK_BYTES = 1024 * 1024


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


class VersionAnswer(Answer):
    """One released version."""

    number: int
    state: str
    sha256: str
    size_bytes: int
    certificate: str
    evaluation: dict[str, Any]
    created_at: datetime
    retired_at: datetime | None
    reason: str | None
    links: dict[str, str]


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


@router.post("", status_code=201, responses=problem_responses(404, 409, 422))
def define_model(
    body: ModelBody, services: ServicesOf, _: ModelsWriter, response: Response
) -> ModelAnswer:
    """Define a model and start its training, or wait for weights from elsewhere."""
    definition = lineage.ModelDefinition(
        name=body.name,
        dataset=body.dataset,
        architecture=ArchitectureSpec.from_json(body.architecture),
        recipe=body.recipe,
        policy=body.policy.to_policy(),
        weights_source=WeightsSource(body.weights),
    )
    with services.database.transaction() as session:
        model = lineage.define_model(session, definition)
        session.refresh(model)
        response.headers["Location"] = f"/v1/models/{model.name}"
        return _model_answer(session, model)


@router.get("", responses=problem_responses())
def list_models(services: ServicesOf, _: ModelsReader) -> list[ModelAnswer]:
    """List all models."""
    with services.database.transaction() as session:
        return [_model_answer(session, model) for model in registry.models(session)]


@router.get("/{name}", responses=problem_responses(404))
def get_model(name: str, services: ServicesOf, _: ModelsReader) -> ModelAnswer:
    """Show one model."""
    with services.database.transaction() as session:
        return _model_answer(session, registry.model_named(session, name))


@router.put(
    "/{name}/weights",
    status_code=202,
    responses=problem_responses(404, 409, 413, 422),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        }
    },
)
def import_weights(
    name: str, services: ServicesOf, _: ModelsWriter, content: LimitedBody
) -> ModelAnswer:
    """Bring safetensors weights trained elsewhere; their first release is certified next."""
    lineage.check_weights(content)
    with services.database.transaction() as session:
        registry.model_named(session, name)
    blob = services.blobs.put("imported-weights", content)
    with services.database.transaction() as session:
        model = lineage.import_weights(session, services.blobs, name, blob)
        return _model_answer(session, model)


@router.get("/{name}/certified", responses=problem_responses(404, 410))
def get_certified(name: str, services: ServicesOf, _: ModelsReader) -> VersionAnswer:
    """Show the current certified version."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        return _version_answer(model, serving.current_version(session, model))


@router.get(
    "/{name}/certified/weights",
    status_code=307,
    response_class=RedirectResponse,
    responses=problem_responses(404, 410),
)
def redirect_to_weights(name: str, services: ServicesOf, _: ModelsReader) -> RedirectResponse:
    """Redirect to the weights of the current certified version."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        number = serving.current_version(session, model).number
    return RedirectResponse(f"/v1/models/{name}/versions/{number}/weights", status_code=307)


@router.get("/{name}/versions", responses=problem_responses(404))
def list_versions(name: str, services: ServicesOf, _: ModelsReader) -> list[VersionAnswer]:
    """List all released versions, newest first, retired ones included."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        return [
            _version_answer(model, version)
            for version in registry.versions(session, model.id)
            if version.state != VersionState.PRIVATE
        ]


@router.get(
    "/{name}/versions/{number}/weights",
    response_class=StreamingResponse,
    responses=problem_responses(404, 410)
    | {
        200: {
            "description": "The weights in safetensors format",
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            },
        },
        304: {"description": "The copy named by If-None-Match is current"},
    },
)
def download_weights(
    name: str,
    number: int,
    services: ServicesOf,
    _: ModelsReader,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Download a version's weights; a retired version is gone."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        version = serving.served_version(session, model, number)
        etag = f'"{version.sha256}"'
        size_bytes, blob_id = version.size_bytes, version.blob_id
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if if_none_match is not None and _names(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    file = services.blobs.open(blob_id)

    def chunks() -> Iterator[bytes]:
        with file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    return StreamingResponse(
        chunks(),
        media_type="application/octet-stream",
        headers=headers | {"Content-Length": str(size_bytes)},
    )


def _names(if_none_match: str, etag: str) -> bool:
    """Say whether the header names the tag: weak comparison, RFC 9110 section 13.1.2."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags


@router.get(
    "/{name}/versions/{number}/certificate",
    responses=problem_responses(404),
    response_model_exclude_none=True,
)
def get_version_certificate(
    name: str, number: int, services: ServicesOf, _: ModelsReader, since: Since = None
) -> BundleAnswer:
    """Return a version's certificate bundle; retired versions keep theirs."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        version = registry.version_numbered(session, model, number)
        certificate = repository.certificate(session, version.certificate_id)
        return BundleAnswer(**bundles.bundle_of(session, certificate, since=since))


def _model_answer(session: Session, model: ModelRow) -> ModelAnswer:
    head = serving.find_current_version(session, model)
    run = repository.latest_run(session, model.id)
    return ModelAnswer(
        name=model.name,
        dataset=session.get_one(DatasetRow, model.dataset_id).name,
        architecture=model.architecture,
        recipe=model.recipe,
        policy=model.policy,
        weights=model.weights_source,
        certified=None if head is None else _version_answer(model, head),
        latest_run=None if run is None else run_answer(run),
        created_at=model.created_at,
    )


def _version_answer(model: ModelRow, version: VersionRow) -> VersionAnswer:
    path = f"/v1/models/{model.name}/versions/{version.number}"
    return VersionAnswer(
        number=version.number,
        state=version.state,
        sha256=version.sha256,
        size_bytes=version.size_bytes,
        certificate=version.certificate_id,
        evaluation=version.evaluation,
        created_at=version.created_at,
        retired_at=version.retired_at,
        reason=version.reason,
        links={"weights": f"{path}/weights", "certificate": f"{path}/certificate"},
    )
