"""Defining backbones and uploading their weights."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.domain.architectures import ArchitectureSpec, FeatureLayer
from app.domain.errors import ConflictError, InvalidInputError
from app.domain.ids import new_id
from app.domain.parameters import features_of, parameters_of, require_parameters
from app.domain.schema import InputSchema
from app.registry.backbones import repository
from app.registry.backbones.tables import BackboneRow
from app.runtime.database.endings import require_live
from app.storage.blobs import Blobs


@dataclass(frozen=True)
class BackboneDefinition:
    """The caller's description of a backbone.

    Attributes:
        architecture: the network of these weights; it has no backbone itself.
        input_shape: shape of one record's inputs.
        layers: whose outputs are the features of a frozen one; none: the network's own output is.
        features: how many there are; None: what can be computed without the network, or unknown.
    """

    name: str
    architecture: ArchitectureSpec
    input_shape: tuple[int, ...]
    classes: int
    source: str
    layers: tuple[FeatureLayer, ...] = ()
    features: int | None = None

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise InvalidInputError("classes must be at least 2")
        # A backbone reads what a task reads, so the same limits apply.
        InputSchema(shape=self.input_shape, classes=self.classes)
        if self.architecture.backbone is not None:
            raise InvalidInputError("architecture: a backbone cannot stand on another backbone")
        if self.architecture.of is not None:
            raise InvalidInputError("architecture: a backbone is one network, not an ensemble")
        if not self.layers:
            own = features_of(self.architecture, input_shape=self.input_shape)
            if own is not None and self.features not in (None, own):
                raise InvalidInputError(f"features: this network makes {own}, not {self.features}")
            object.__setattr__(self, "features", self.features if own is None else own)
        if self.features is not None:
            InputSchema(shape=(self.features,), classes=self.classes)

    def require_parameters(self) -> None:
        """Raise ``InvalidInputError`` if its network has too many parameters."""
        count = parameters_of(self.architecture, input_shape=self.input_shape, classes=self.classes)
        require_parameters(count)


def define_backbone(session: Session, definition: BackboneDefinition) -> BackboneRow:
    """Create a backbone without weights; ``ConflictError`` if the name is taken."""
    row = BackboneRow(
        id=new_id("bb"),
        name=definition.name,
        architecture=definition.architecture.to_json(),
        input_shape=list(definition.input_shape),
        classes=definition.classes,
        layers=[layer.to_json() for layer in definition.layers],
        features=definition.features,
        source=definition.source,
    )
    return repository.add(session, row)


def upload_weights(session: Session, blobs: Blobs, name: str, content: bytes) -> BackboneRow:
    """Store a backbone's weights, once: certificates name them by their digest."""
    row = repository.backbone_named(session, name)
    require_live("backbone", row)
    _require_no_weights(row)
    blob = blobs.put(session, "backbone", content)
    row = repository.backbone_named(session, name, lock=True)
    require_live("backbone", row)
    _require_no_weights(row)
    repository.give_weights(session, row, blob)
    return row


def _require_no_weights(backbone: BackboneRow) -> None:
    if backbone.sha256 is not None:
        raise ConflictError(
            f"backbone {backbone.name!r} has its weights, and they never change: define another"
        )
