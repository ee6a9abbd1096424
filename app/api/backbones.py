"""``/v1/backbones``: public weights that models may build on."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field, StringConstraints

from app.api.protocol.access import GuardedRoute, ModelsReader, ModelsWriter, ServicesOf
from app.api.protocol.bodies import RawBody, file_body
from app.api.protocol.cursors import PageByName
from app.api.protocol.errors import problem_responses
from app.api.protocol.headers import answer_headers
from app.api.protocol.schemas import Answer, Body, Name, Page
from app.backbones import repository, service
from app.backbones.tables import BackboneRow
from app.domain.architecture import ArchitectureSpec
from app.models import definitions

router = APIRouter(prefix="/v1/backbones", tags=["backbones"], route_class=GuardedRoute)

Source = Annotated[str, StringConstraints(min_length=1, max_length=2000)]


class InputBody(Body):
    """A backbone's input: features in a dataset's encoding."""

    shape: list[int] = Field(examples=[[8, 8]], min_length=1, max_length=8)


class BackboneBody(Body):
    """A public backbone's definition.

    The uploader asserts that its weights do not depend on the records of any model built on them.
    Certificates say so.
    """

    name: Name = Field(examples=["public-digits"])
    architecture: dict[str, Any] = Field(examples=[{"name": "mlp", "options": {"hidden": [32]}}])
    input: InputBody
    classes: int = Field(description="Number of classes of the public task", examples=[10])
    source: Source = Field(
        description="Where the weights come from",
        examples=["trained on the public half of scikit-learn's digits"],
    )


class BackboneAnswer(Answer):
    """A backbone; ``sha256`` and ``size_bytes`` are null until its weights are uploaded."""

    name: str
    architecture: dict[str, Any]
    input: InputBody
    classes: int
    source: str
    sha256: str | None
    size_bytes: int | None
    created_at: datetime


class BackbonePage(Page[BackboneAnswer]):
    """A page of backbones, by name."""


@router.post(
    "",
    status_code=201,
    responses=problem_responses(409, 422) | answer_headers(201, "Location"),
)
def define_backbone(
    body: BackboneBody, services: ServicesOf, _: ModelsWriter, response: Response
) -> BackboneAnswer:
    """Define a public backbone; upload its weights next."""
    definition = service.BackboneDefinition(
        name=body.name,
        architecture=ArchitectureSpec.from_json(body.architecture),
        input_shape=tuple(body.input.shape),
        classes=body.classes,
        source=body.source,
    )
    definition.require_parameters(services.settings.max_parameters)
    with services.database.transaction() as session:
        row = service.define_backbone(session, definition)
        session.refresh(row)
        response.headers["Location"] = f"/v1/backbones/{row.name}"
        return _answer(row)


@router.get("", responses=problem_responses())
def list_backbones(services: ServicesOf, _: ModelsReader, page: PageByName) -> BackbonePage:
    """List backbones by name."""
    with services.database.transaction() as session:
        rows = repository.backbones(session, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: row.name)
        return BackbonePage(items=[_answer(row) for row in rows], next_cursor=next_cursor)


@router.get("/{name}", responses=problem_responses(404))
def get_backbone(name: str, services: ServicesOf, _: ModelsReader) -> BackboneAnswer:
    """Show one backbone."""
    with services.database.transaction() as session:
        return _answer(repository.backbone_named(session, name))


@router.put(
    "/{name}/weights",
    responses=problem_responses(404, 409, 413, 422),
    openapi_extra=file_body("application/octet-stream"),
)
def upload_weights(
    name: str, services: ServicesOf, _: ModelsWriter, content: RawBody
) -> BackboneAnswer:
    """Upload a backbone's safetensors weights, once."""
    definitions.check_weights(content)
    with services.database.transaction() as session:
        return _answer(service.upload_weights(session, services.blobs, name, content))


def _answer(row: BackboneRow) -> BackboneAnswer:
    return BackboneAnswer(
        name=row.name,
        architecture=row.architecture,
        input=InputBody(shape=row.input_shape),
        classes=row.classes,
        source=row.source,
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        created_at=row.created_at,
    )
