"""Public backbones: definitions, weights, use by models, and all SQL about them.

Everything raises ``NotFoundError`` for a backbone that does not exist, ``GoneError`` for an
archived one, ``ConflictError`` where it has no weights, or has them already, and
``InvalidInputError`` for a definition or a use that does not fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.domain.architectures import (
    ArchitectureSpec,
    BackboneDigest,
    FeatureLayer,
    definition_digest,
)
from app.domain.errors import ConflictError, InvalidInputError
from app.domain.heads import boosted_trees
from app.domain.ids import new_id
from app.domain.parameters import features_of, parameters_of, require_parameters
from app.domain.schema import InputSchema
from app.domain.tasks.spec import TaskSpec
from app.evidence import log
from app.registry.tables import BackboneRow
from app.runtime.database.endings import require_live
from app.runtime.database.queries import known
from app.storage.blobs import Blobs, adopt


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
    if session.scalar(_named(definition.name)) is not None:
        raise ConflictError(f"backbone {definition.name!r} exists already")
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
    session.add(row)
    session.flush()
    log.append(session, "backbone.defined", backbone=row.id)
    return row


def upload_weights(session: Session, blobs: Blobs, name: str, content: bytes) -> BackboneRow:
    """Store a backbone's weights, once: certificates name them by their digest."""
    row = backbone_named(session, name)
    require_live("backbone", row)
    _require_no_weights(row)
    blob = blobs.put(session, "backbone", content)
    row = backbone_named(session, name, lock=True)
    require_live("backbone", row)
    _require_no_weights(row)
    adopt(session, blob.id)
    row.blob_id, row.sha256, row.size_bytes = blob.id, blob.sha256, blob.size_bytes
    log.append(session, "backbone.uploaded", backbone=row.id, sha256=blob.sha256)
    return row


def _require_no_weights(backbone: BackboneRow) -> None:
    if backbone.sha256 is not None:
        raise ConflictError(
            f"backbone {backbone.name!r} has its weights, and they never change: define another"
        )


def backbone_named(session: Session, name: str, *, lock: bool = False) -> BackboneRow:
    """Return a backbone, or raise ``NotFoundError``; ``lock`` locks it and reads it again."""
    query = _named(name)
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    return known(session.scalar(query), "backbone", name)


def page(session: Session, *, after: str | None = None, limit: int) -> Sequence[BackboneRow]:
    """Return a page of backbones by name, starting after the name ``after``."""
    query = select(BackboneRow).where(BackboneRow.deleted_at.is_(None))
    if after is not None:
        query = query.where(BackboneRow.name > after)
    return session.scalars(query.order_by(BackboneRow.name).limit(limit)).all()


def _named(name: str) -> Select[BackboneRow]:
    return select(BackboneRow).where(BackboneRow.name == name, BackboneRow.deleted_at.is_(None))


def require_usable(session: Session, architecture: ArchitectureSpec, records: InputSchema) -> None:
    """Check that a model's backbone exists and fits; do nothing if it has none."""
    use, network = architecture.backbone, architecture.member
    if use is None:
        _refuse_tokens(network, records)
        return
    backbone = backbone_named(session, use.name)
    require_live("backbone", backbone)
    if backbone.sha256 is None:
        raise ConflictError(f"backbone {use.name!r} has no weights yet: upload them first")
    if tuple(backbone.input_shape) != records.shape:
        raise InvalidInputError(
            f"backbone {use.name!r} reads features of shape {backbone.input_shape}, "
            f"the dataset has {list(records.shape)}"
        )
    own = ArchitectureSpec.from_json(backbone.architecture)
    _refuse_tokens(own, records)
    if not use.frozen and network.without_backbone != own:
        raise InvalidInputError(
            f"architecture: to train on from backbone {use.name!r} (frozen: false) the model, or "
            "each member of an ensemble, needs the backbone's own name, options and factory"
        )


def _refuse_tokens(reader: ArchitectureSpec, records: InputSchema) -> None:
    if records.tokens and reader.name != "custom":
        raise InvalidInputError(
            f"architecture: {reader.name} computes with numbers, and the dataset holds tokens: use "
            "custom, with a factory whose network begins with an embedding"
        )


def lock_backbone(session: Session, architecture: ArchitectureSpec) -> None:
    """Lock the backbone of a model that is being defined, if it has one."""
    if architecture.backbone is not None:
        backbone_named(session, architecture.backbone.name, lock=True)


def parameters_of_model(
    session: Session, architecture: ArchitectureSpec, task: TaskSpec, schema: InputSchema
) -> int | None:
    """Count the weights that a model trains, given what its task reads; None if unknown.

    ``require_usable`` has accepted the backbone.
    """
    shape: tuple[int, ...] = schema.shape
    backbone = backbone_of(session, architecture)
    if backbone is not None and architecture.on_features:
        if backbone.features is None:
            return None
        shape = (backbone.features,)
    return parameters_of(
        architecture,
        input_shape=shape,
        classes=task.outputs,
        rows=task.rows,
        words=boosted_trees.words_of(boosted_trees.categories_of(architecture, task)),
    )


def backbone_of(session: Session, architecture: ArchitectureSpec) -> BackboneRow | None:
    """Return the backbone of a defined model, or None."""
    if architecture.backbone is None:
        return None
    return backbone_named(session, architecture.backbone.name)


def digest_of(session: Session, architecture: ArchitectureSpec) -> BackboneDigest | None:
    """Return the backbone as a defined model's certificates name it, or None."""
    row = backbone_of(session, architecture)
    if row is None or architecture.backbone is None:
        return None
    if row.sha256 is None:
        raise ConflictError(f"backbone {row.name!r} has no weights")
    definition = definition_digest(
        architecture=ArchitectureSpec.from_json(row.architecture).to_json(),
        layers=FeatureLayer.all_from_json(row.layers),
        input_shape=row.input_shape,
        classes=row.classes,
    )
    return BackboneDigest(
        name=row.name,
        sha256=row.sha256,
        definition=definition,
        frozen=architecture.backbone.frozen,
    )
