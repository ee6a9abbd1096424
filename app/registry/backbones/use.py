"""The backbone of a model: lookup and compatibility checks."""

from sqlalchemy.orm import Session

from app.domain.architectures import (
    ArchitectureSpec,
    BackboneDigest,
    FeatureLayer,
    definition_digest,
)
from app.domain.errors import ConflictError, InvalidInputError
from app.domain.parameters import parameters_of
from app.domain.schema import InputSchema
from app.domain.tasks.spec import TaskSpec
from app.registry.backbones import repository
from app.registry.backbones.tables import BackboneRow
from app.runtime.database.endings import require_live


def require_usable(session: Session, architecture: ArchitectureSpec, records: InputSchema) -> None:
    """Check that a model's backbone exists and fits; do nothing if it has none."""
    use, network = architecture.backbone, architecture.member
    if use is None:
        _refuse_tokens(network, records)
        return
    backbone = repository.backbone_named(session, use.name)
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
        repository.backbone_named(session, architecture.backbone.name, lock=True)


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
    return parameters_of(architecture, input_shape=shape, classes=task.outputs, rows=task.rows)


def backbone_of(session: Session, architecture: ArchitectureSpec) -> BackboneRow | None:
    """Return the backbone of a defined model, or None."""
    if architecture.backbone is None:
        return None
    return repository.backbone_named(session, architecture.backbone.name)


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
