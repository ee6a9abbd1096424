"""Whitened backbones: defined here, computed by a worker from a public dataset.

The features that a backbone makes of public records give a mean and a covariance; a whitened
backbone has its base's network and weights, and a linear map of its features by these. It is
another backbone, since models stand on the base.
"""

import math
from dataclasses import asdict, dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.domain.architectures.backbone import Whitening
from app.domain.errors import ConflictError, InvalidInputError
from app.domain.ids import new_id
from app.registry.backbones import repository
from app.registry.backbones.tables import BackboneRow
from app.registry.datasets import repository as datasets
from app.registry.datasets.service import feature_schema_of
from app.registry.datasets.tables import DatasetRow
from app.runtime.database.endings import require_live
from app.storage.blobs import Blobs, doom

DEFAULT_EXPONENT = 0.35


@dataclass(frozen=True)
class WhiteningDefinition:
    """What a caller asks for; ``InvalidInputError`` if the exponent is out of its range.

    Attributes:
        name: of the new backbone.
        base: the backbone whose features are whitened.
        dataset: a public one.
        exponent: of the covariance's eigenvalues: 0 only centres and turns, 0.5 whitens fully.
    """

    name: str
    base: str
    dataset: str
    exponent: float = DEFAULT_EXPONENT

    def __post_init__(self) -> None:
        if not (math.isfinite(self.exponent) and 0 <= self.exponent <= 1):
            raise InvalidInputError("exponent must be a number from 0 to 1")


def define(session: Session, asked: WhiteningDefinition) -> BackboneRow:
    """Define a whitened backbone; a worker computes its weights."""
    dataset = datasets.lock_dataset_named(session, asked.dataset)
    base = repository.backbone_named(session, asked.base, lock=True)
    _require_fit(base, dataset)
    row = BackboneRow(
        id=new_id("bb"),
        name=asked.name,
        architecture=base.architecture,
        input_shape=base.input_shape,
        classes=base.classes,
        layers=base.layers,
        features=base.features,
        source=base.source,
        base_id=base.id,
        public_dataset=dataset.name,
        exponent=float(asked.exponent),
    )
    return repository.add(session, row)


def _require_fit(base: BackboneRow, dataset: DatasetRow) -> None:
    require_live("dataset", dataset)
    require_live("backbone", base)
    if not dataset.public:
        raise ConflictError(
            f"dataset {dataset.name!r} is not public, and never becomes so: a request to forget "
            "its records would have to reach the features of all models. Push public data to a "
            "dataset that is defined as public ('expunge dataset push --public')"
        )
    if base.base_id is not None:
        raise InvalidInputError(f"backbone {base.name!r} is whitened already: whiten its base")
    if base.sha256 is None:
        raise ConflictError(f"backbone {base.name!r} has no weights yet: upload them first")
    schema = feature_schema_of(dataset)
    if tuple(base.input_shape) != schema.shape:
        raise InvalidInputError(
            f"backbone {base.name!r} reads features of shape {base.input_shape}, "
            f"the dataset has {list(schema.shape)}"
        )


def waiting(session: Session) -> list[str]:
    """Return the ids of the backbones whose whitening is to be computed."""
    query = select(BackboneRow.id).where(
        BackboneRow.base_id.is_not(None),
        BackboneRow.sha256.is_(None),
        BackboneRow.failure.is_(None),
        BackboneRow.archived_at.is_(None),
        BackboneRow.deleted_at.is_(None),
    )
    return list(session.scalars(query.order_by(BackboneRow.created_at, BackboneRow.id)))


def begin(session: Session, backbone_id: str, *, max_attempts: int) -> bool:
    """Count an attempt; return whether there is something to compute."""
    row = _locked(session, backbone_id)
    if not _is_waiting(row):
        return False
    if row.attempts >= max_attempts:
        row.failure = f"the worker died {row.attempts} times: it may lack memory for this backbone"
        return False
    row.attempts += 1
    return True


def hand_back(session: Session, backbone_id: str) -> None:
    """Take back an attempt that was interrupted."""
    _locked(session, backbone_id).attempts -= 1


def give_up(
    session: Session, backbone_id: str, *, reason: str, permanent: bool, max_attempts: int
) -> None:
    """Say why there will be no whitening, unless another attempt may help."""
    row = _locked(session, backbone_id)
    if _is_waiting(row) and (permanent or row.attempts >= max_attempts):
        row.failure = reason


def finish(
    session: Session, blobs: Blobs, backbone_id: str, content: bytes, used: Whitening
) -> None:
    """Store the weights, unless another worker has, or the backbone has ended meanwhile."""
    blob = blobs.put(session, "backbone", content)
    row = _locked(session, backbone_id)
    if not _is_waiting(row):
        doom(session, blob.id)
        return
    repository.give_weights(session, row, blob, event="backbone.whitened")
    row.whitening = asdict(used)  # not before the weights: it comes with them


def _is_waiting(row: BackboneRow) -> bool:
    ended = row.archived_at is not None or row.deleted_at is not None
    return row.sha256 is None and row.failure is None and not ended


def _locked(session: Session, backbone_id: str) -> BackboneRow:
    return session.get_one(BackboneRow, backbone_id, with_for_update=True, populate_existing=True)
