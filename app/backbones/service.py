"""Defining backbones and uploading their weights."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app import log
from app.backbones import repository
from app.backbones.tables import BackboneRow
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import ConflictError, InvalidInputError
from app.domain.ids import new_id
from app.domain.parameters import parameters_of, require_parameters
from app.domain.schema import FeatureSchema
from app.storage.blobs import Blobs


@dataclass(frozen=True)
class BackboneDefinition:
    """The caller's description of a backbone.

    Attributes:
        name: the name that models refer to.
        architecture: the network of these weights; it has no backbone itself.
        input_shape: shape of one record's features, as in a dataset's schema.
        classes: number of classes of the public task it was trained for.
        source: where the weights come from.

    Raises:
        InvalidInputError: the shape, the classes or the architecture is invalid.
    """

    name: str
    architecture: ArchitectureSpec
    input_shape: tuple[int, ...]
    classes: int
    source: str

    def __post_init__(self) -> None:
        # A backbone reads a dataset's features, so a dataset's limits apply.
        FeatureSchema(
            shape=self.input_shape, dtype="float32", offset=0.0, scale=1.0, classes=self.classes
        )
        if self.architecture.backbone is not None:
            raise InvalidInputError("architecture: a backbone cannot stand on another backbone")

    def require_parameters(self, most: int) -> None:
        """Raise ``InvalidInputError`` if its network has more than ``most`` parameters."""
        count = parameters_of(self.architecture, input_shape=self.input_shape, classes=self.classes)
        require_parameters(count, most=most)


def define_backbone(session: Session, definition: BackboneDefinition) -> BackboneRow:
    """Create a backbone without weights.

    Raises:
        ConflictError: the name is taken.
    """
    if repository.find_backbone(session, definition.name) is not None:
        raise ConflictError(f"backbone {definition.name!r} exists already")
    row = BackboneRow(
        id=new_id("bb"),
        name=definition.name,
        architecture=definition.architecture.to_json(),
        input_shape=list(definition.input_shape),
        classes=definition.classes,
        source=definition.source,
    )
    session.add(row)
    session.flush()
    log.append(session, "backbone.defined", backbone=row.id, definition=repository.digest_of(row))
    return row


def upload_weights(session: Session, blobs: Blobs, name: str, content: bytes) -> BackboneRow:
    """Store a backbone's weights, once: certificates name them by their digest.

    Raises:
        NotFoundError: the backbone does not exist.
        ConflictError: it already has weights.
    """
    row = repository.backbone_named(session, name)
    _require_no_weights(row)
    blob = blobs.put(session, "backbone", content)
    session.refresh(row, with_for_update=True)
    _require_no_weights(row)
    blobs.adopt(session, blob.id)
    row.blob_id = blob.id
    row.sha256 = blob.sha256
    row.size_bytes = blob.size_bytes
    log.append(
        session,
        "backbone.uploaded",
        backbone=row.id,
        blob=blob.id,
        sha256=blob.sha256,
        size_bytes=blob.size_bytes,
    )
    return row


def _require_no_weights(backbone: BackboneRow) -> None:
    """Reject a second upload with ``ConflictError``."""
    if backbone.sha256 is not None:
        raise ConflictError(
            f"backbone {backbone.name!r} has its weights, and they never change: define another"
        )
