"""The end of models, datasets and backbones.

Archived: it serves no more, what it held is given up to be shredded, and what stays says so:
certificates, the log, the name. Deleted: only what has released nothing, and its name is free.
"""

from sqlalchemy.orm import Session

from app.domain.errors import ConflictError
from app.domain.states import RETRYABLE_RUN_STATES, RunKind
from app.evidence import log
from app.ledger import repository, runs
from app.ledger.certificates import issuing
from app.ledger.withdrawal import withdraw
from app.registry import backbones
from app.registry import repository as registry
from app.registry.datasets import features
from app.registry.datasets import repository as datasets
from app.registry.datasets.imports import service as imports
from app.registry.datasets.service import give_up_records
from app.registry.datasets.tables import DatasetRow
from app.registry.tables import BackboneRow, ModelRow
from app.runtime.database.endings import require_live
from app.runtime.database.queries import database_time
from app.storage.blobs import doom

ARCHIVED = "the model was archived: it is served no more, and its weights were shredded"
DELETED = "the model was deleted before it released anything"


def archive_model(session: Session, name: str) -> ModelRow:
    """Take a model out of service for good; what it owes ends, since nothing is left to forget."""
    model = _without_run(session, name, reason=ARCHIVED)
    require_live("model", model)
    withdraw(session, model, reason=ARCHIVED)
    model.archived_at = database_time(session)
    log.append(session, "model.archived", model=model.id)
    return model


def delete_model(session: Session, name: str) -> None:
    """Remove a model that has released nothing, and free its name."""
    model = registry.model_named(session, name)
    _require_unreleased(session, model)
    model = _without_run(session, name, reason=DELETED)
    _require_unreleased(session, model)
    withdraw(session, model, reason=DELETED)
    _delete(session, "model", model)


def is_free(session: Session, name: str) -> bool:
    """Return whether a model may be defined under a name: it is new, or only failed before."""
    model = registry.find_model(session, name)
    return model is None or _only_failed(session, model)


def replace_failed_model(session: Session, name: str) -> None:
    """Delete a model that has only failed, if there is one of this name."""
    if registry.find_model(session, name) is None:
        return
    model = registry.model_named(session, name, lock=True)
    if _only_failed(session, model):
        _delete(session, "model", model)


def _only_failed(session: Session, model: ModelRow) -> bool:
    """Return whether all there is of a model are trainings that failed or were cancelled."""
    newest = repository.latest_run(session, model.id)
    return (
        newest is not None
        and newest.kind == RunKind.TRAIN
        and newest.state in RETRYABLE_RUN_STATES
        and registry.next_number(session, model.id) == 1
        and model.archived_at is None
    )


def archive_dataset(session: Session, name: str) -> DatasetRow:
    """Shred the records of a dataset that no model learns from any more."""
    dataset = datasets.lock_dataset_named(session, name)
    require_live("dataset", dataset)
    _require_unused(session, f"dataset {name!r}", dataset_id=dataset.id)
    imports.end_all(session, dataset.id, reason="the dataset was archived")
    give_up_records(session, dataset)
    dataset.archived_at = database_time(session)
    log.append(session, "dataset.archived", dataset=dataset.id)
    return dataset


def delete_dataset(session: Session, name: str) -> None:
    """Shred a dataset from which nothing was released, nor asked to be forgotten; free its name."""
    dataset = datasets.lock_dataset_named(session, name)
    require_live("dataset", dataset)
    _require_unused(session, f"dataset {name!r}", dataset_id=dataset.id)
    if used := registry.models_on(session, dataset_id=dataset.id, archived=True):
        raise ConflictError(
            f"dataset {name!r} is named by the certificates of {', '.join(used)}: archive it"
        )
    if dataset.forget_epoch:
        raise ConflictError(f"dataset {name!r} is named by forget requests: archive it")
    imports.end_all(session, dataset.id, reason="the dataset was deleted")
    give_up_records(session, dataset)
    _delete(session, "dataset", dataset)


def archive_backbone(session: Session, name: str) -> BackboneRow:
    """Shred the weights of a backbone on which no model stands any more."""
    backbone = backbones.backbone_named(session, name, lock=True)
    require_live("backbone", backbone)
    _end_backbone(session, backbone)
    backbone.archived_at = database_time(session)
    log.append(session, "backbone.archived", backbone=backbone.id)
    return backbone


def delete_backbone(session: Session, name: str) -> None:
    """Remove a backbone on which no model ever released a version, and free its name."""
    backbone = backbones.backbone_named(session, name, lock=True)
    used = registry.models_on(session, backbone=name, archived=True)
    if used:
        raise ConflictError(
            f"backbone {name!r} is named by the certificates of {', '.join(used)}: archive it"
        )
    _end_backbone(session, backbone)
    _delete(session, "backbone", backbone)


def _end_backbone(session: Session, backbone: BackboneRow) -> None:
    _require_unused(session, f"backbone {backbone.name!r}", backbone=backbone.name)
    features.give_up(session, backbone_id=backbone.id)
    doom(session, backbone.blob_id)


def _without_run(session: Session, name: str, *, reason: str) -> ModelRow:
    """End a model's run, and lock the model; in this order, as workers do."""
    model = registry.model_named(session, name)
    runs.end_for_good(session, model.id, reason=reason)
    model = registry.model_named(session, name, lock=True)
    if repository.active_run(session, model.id) is not None:
        raise ConflictError(f"model {name!r} has changed meanwhile: try again")
    return model


def _require_unreleased(session: Session, model: ModelRow) -> None:
    require_live("model", model)
    if issuing.has_shown_certificate(session, model.id):
        raise ConflictError(f"model {model.name!r} has released a version: archive it")


def _require_unused(
    session: Session, what: str, *, dataset_id: str | None = None, backbone: str | None = None
) -> None:
    used = registry.models_on(session, dataset_id=dataset_id, backbone=backbone)
    if used:
        raise ConflictError(f"{what} is in use: archive or delete first {', '.join(used)}")


def _delete(session: Session, kind: str, row: ModelRow | DatasetRow | BackboneRow) -> None:
    row.deleted_at = database_time(session)
    log.append(session, f"{kind}.deleted", **{kind: row.id})
    session.flush()
