"""``/v1/backbones``: public weights that models may build on."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import Field, StringConstraints

from app.api.protocol.access import GuardedRoute, ModelsReader, ModelsWriter, ServicesOf
from app.api.protocol.bodies import RawBody, file_body
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Body, Name, Page, PageByName
from app.domain.architectures import MOST_LAYERS, ArchitectureSpec, FeatureLayer
from app.ledger.models import definitions, destruction, endings
from app.registry import backbones
from app.registry.tables import BackboneRow

router = APIRouter(prefix="/v1/backbones", tags=["backbones"], route_class=GuardedRoute)

Source = Annotated[str, StringConstraints(min_length=1, max_length=2000)]


class InputBody(Body):
    """A backbone's input: the inputs of a task."""

    shape: list[int] = Field(examples=[[8, 8]], min_length=1, max_length=8)


class LayerBody(Body):
    """A layer whose output, averaged over positions, is a part of the features."""

    module: str = Field(
        description="Its name in the network's `named_modules()`",
        examples=["_blocks.10"],
        min_length=1,
        max_length=200,
    )
    pool: Literal["1x1", "2x2"] = Field(
        default="1x1",
        description="Averages over all positions or tokens, or over the four quarters of an image",
    )
    std: bool = Field(default=False, description="Whether standard deviations follow")


class BackboneBody(Body):
    """A public backbone's definition.

    The uploader asserts that its weights do not depend on the records of any model built on them.
    Certificates say so.
    """

    name: Name = Field(examples=["public-digits"])
    architecture: dict[str, Any] = Field(examples=[{"name": "mlp", "options": {"hidden": [32]}}])
    input: InputBody
    classes: int = Field(description="Number of classes of the public task", examples=[10])
    layers: list[LayerBody] = Field(
        default=[],
        description="The features of a frozen backbone, in this order; by default the input of a "
        "built-in network's last layer, or the output of a factory's network",
        max_length=MOST_LAYERS,
    )
    features: int | None = Field(
        default=None,
        description="How many features that makes; workers refuse a network that makes others",
        ge=1,
        examples=[32],
    )
    source: Source = Field(
        description="Where the weights come from",
        examples=["trained on the public half of scikit-learn's digits"],
    )


class BackboneAnswer(Answer):
    """A backbone.

    ``sha256`` and ``size_bytes`` are null until its weights are uploaded.
    """

    name: str
    architecture: dict[str, Any]
    input: InputBody
    classes: int
    layers: list[LayerBody]
    features: int | None
    source: str
    sha256: str | None
    size_bytes: int | None
    created_at: datetime
    archived_at: datetime | None


@router.post("", **answers(409, status=201, headers=("Location",)))
def define_backbone(
    body: BackboneBody, services: ServicesOf, _: ModelsWriter, response: Response
) -> BackboneAnswer:
    """Define a public backbone; upload its weights next."""
    definition = backbones.BackboneDefinition(
        name=body.name,
        architecture=ArchitectureSpec.from_json(body.architecture),
        input_shape=tuple(body.input.shape),
        classes=body.classes,
        source=body.source,
        layers=FeatureLayer.all_from_json([layer.model_dump() for layer in body.layers]),
        features=body.features,
    )
    definition.require_parameters()
    with services.database.transaction() as session:
        row = backbones.define_backbone(session, definition)
        session.refresh(row)
        response.headers["Location"] = f"/v1/backbones/{row.name}"
        return _answer(row)


@router.get("", **answers())
def list_backbones(services: ServicesOf, _: ModelsReader, page: PageByName) -> Page[BackboneAnswer]:
    """List backbones by name."""
    with services.database.transaction() as session:
        rows = backbones.page(session, after=page.after, limit=page.limit + 1)
        return page.answer(rows, lambda row: row.name, _answer)


@router.get("/{name}", **answers(404))
def get_backbone(name: str, services: ServicesOf, _: ModelsReader) -> BackboneAnswer:
    """Show one backbone."""
    with services.database.transaction() as session:
        return _answer(backbones.backbone_named(session, name))


@router.post("/{name}/archive", **answers(404, 409, 410))
def archive_backbone(name: str, services: ServicesOf, _: ModelsWriter) -> BackboneAnswer:
    """Shred a backbone's weights for good; no model may stand on it any more."""
    with services.database.transaction() as session:
        return _answer(endings.archive_backbone(session, name))


@router.delete("/{name}", **answers(404, 409, status=204))
def delete_backbone(name: str, services: ServicesOf, _: ModelsWriter) -> None:
    """Delete a backbone that no certificate names; its name is free again."""
    with services.database.transaction() as session:
        endings.delete_backbone(session, name)


@router.put(
    "/{name}/weights",
    **answers(404, 409, 410, 413),
    openapi_extra=file_body("application/octet-stream"),
)
def upload_backbone_weights(
    name: str, services: ServicesOf, _: ModelsWriter, content: RawBody
) -> BackboneAnswer:
    """Upload a backbone's safetensors weights, once."""
    definitions.check_weights(content)
    with services.database.transaction() as session:
        row = backbones.upload_weights(session, services.blobs, name, content)
        destruction.refuse_destroyed(session, row.sha256 or "")
        return _answer(row)


def _answer(row: BackboneRow) -> BackboneAnswer:
    return BackboneAnswer.of(row, input={"shape": row.input_shape})
