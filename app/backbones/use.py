"""The backbone of a model: lookup and compatibility checks."""

from sqlalchemy.orm import Session

from app.backbones import repository
from app.backbones.tables import BackboneRow
from app.domain.architecture import ArchitectureSpec
from app.domain.backbone import BackboneDigest
from app.domain.errors import ConflictError, InvalidInputError
from app.domain.parameters import features_of, parameters_of
from app.domain.schema import FeatureSchema


def require_usable(
    session: Session, architecture: ArchitectureSpec, *, input_shape: tuple[int, ...]
) -> None:
    """Check that a model's backbone exists and fits; do nothing if it has none.

    Args:
        session: a session of the ledger.
        architecture: the model's architecture.
        input_shape: shape of the features in the model's dataset.

    Raises:
        NotFoundError: the backbone does not exist.
        ConflictError: it has no weights yet.
        InvalidInputError: its input shape differs, or its network is not the one to train.
    """
    use = architecture.backbone
    if use is None:
        return
    backbone = repository.backbone_named(session, use.name)
    if backbone.sha256 is None:
        raise ConflictError(f"backbone {use.name!r} has no weights yet: upload them first")
    if tuple(backbone.input_shape) != input_shape:
        raise InvalidInputError(
            f"backbone {use.name!r} reads features of shape {backbone.input_shape}, "
            f"the dataset has {list(input_shape)}"
        )
    own = ArchitectureSpec.from_json(backbone.architecture)
    if not use.frozen and architecture.without_backbone != own:
        raise InvalidInputError(
            f"architecture: to train on from backbone {use.name!r} (frozen: false) the model needs "
            "the backbone's own name, options and factory"
        )


def parameters_of_model(
    session: Session, architecture: ArchitectureSpec, schema: FeatureSchema
) -> int | None:
    """Count the weights that a model trains, given a dataset's schema; None if unknown.

    ``require_usable`` has accepted the backbone.
    """
    shape: tuple[int, ...] = schema.shape
    backbone = backbone_of(session, architecture)
    if backbone is not None and architecture.on_features:
        own = ArchitectureSpec.from_json(backbone.architecture)
        features = features_of(own, input_shape=shape)
        if features is None:
            return None
        shape = (features,)
    return parameters_of(architecture, input_shape=shape, classes=schema.classes)


def backbone_of(session: Session, architecture: ArchitectureSpec) -> BackboneRow | None:
    """Return the backbone of a defined model, or None."""
    if architecture.backbone is None:
        return None
    return repository.backbone_named(session, architecture.backbone.name)


def digest_of(session: Session, architecture: ArchitectureSpec) -> BackboneDigest | None:
    """Return the backbone as a defined model's certificates name it, or None.

    Raises:
        ConflictError: the backbone has no weights.
    """
    row = backbone_of(session, architecture)
    if row is None or architecture.backbone is None:
        return None
    if row.sha256 is None:
        raise ConflictError(f"backbone {row.name!r} has no weights")
    return BackboneDigest(name=row.name, sha256=row.sha256, frozen=architecture.backbone.frozen)
