"""Defining a model, and importing weights that were trained elsewhere."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.domain.architectures import ENSEMBLE, ArchitectureSpec
from app.domain.errors import ConflictError, InvalidInputError, PayloadTooLargeError
from app.domain.heads import boosted_trees, ridge_head
from app.domain.ids import new_id
from app.domain.parameters import require_parameters
from app.domain.policy import Policy
from app.domain.schema import TableSchema
from app.domain.states import FirstRelease, RunKind, WeightsSource
from app.domain.tasks import catalogue
from app.domain.tasks.spec import require_augmentable
from app.evidence import log
from app.ledger import repository
from app.ledger.models.destruction import refuse_destroyed
from app.ledger.models.endings import is_free, replace_failed_model
from app.ledger.models.policies import require_members, require_trained_here
from app.ledger.models.recipes import recipe_of
from app.ledger.runs import create_run
from app.planning.planner import make_plan
from app.registry import counts
from app.registry import repository as registry
from app.registry.backbones import lock_backbone, parameters_of_model, require_usable
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import DatasetRow
from app.registry.forecasts import Occasion, PlanMaker
from app.registry.membership import membership_of
from app.registry.tables import ModelRow
from app.registry.tasks import require_readable
from app.runtime.database import Database
from app.runtime.database.endings import require_live
from app.storage.blobs import Blobs, adopt, doom

_SALT_BYTES = 32
_TAKES_NO_WEIGHTS = {
    boosted_trees.NAME: "boosted_trees are grown from their records",
    ridge_head.NAME: "a ridge_head is solved from its records",
    ENSEMBLE: "which records each member of an ensemble learns from is decided here",
}
_MAX_HEADER_BYTES = 4 << 20
_DTYPES = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"}


@dataclass(frozen=True)
class ModelDefinition:
    """The caller's choices for a model.

    ``recipe`` sets some fields of ``TrainingRecipe``; the architecture's defaults set the others.
    """

    name: str
    dataset: str
    architecture: ArchitectureSpec
    recipe: Mapping[str, Any]
    policy: Policy
    weights_source: WeightsSource
    task: Mapping[str, Any]


def define_model(
    database: Database,
    definition: ModelDefinition,
    *,
    make: PlanMaker = make_plan,
) -> ModelRow:
    """Create a model and, unless its weights are imported, start its training.

    The name of a model whose first training failed is free: that model is deleted.

    Nothing is locked while ``make`` plans the first run.
    """
    with database.transaction() as session:
        model = _definable(session, definition)
        remembered, _, _ = datasets.counts(session, model.dataset_id)
        occasion = Occasion.of(session, model)
    forecast = occasion.forecast(make)
    trains = definition.weights_source is WeightsSource.TRAIN
    forecast.require_tracked_start()
    if trains and remembered == 0:
        raise ConflictError(f"dataset {definition.dataset!r} has no records: push some first")
    try:
        with database.transaction() as session:
            # Neither dataset nor backbone may be archived meanwhile.
            datasets.lock_dataset_named(session, definition.dataset)
            lock_backbone(session, definition.architecture)
            replace_failed_model(session, definition.name)
            model = _definable(session, definition)
            session.add(model)
            session.flush()
            log.append(
                session,
                "model.defined",
                model=model.id,
                dataset=model.dataset_id,
                policy=model.policy,
            )
            if trains:
                create_run(session, model, RunKind.TRAIN, forecast)
    except IntegrityError as error:  # a concurrent call took the name
        raise _name_taken(definition) from error
    return model


def _definable(session: Session, definition: ModelDefinition) -> ModelRow:
    """Return the model that a definition describes, not yet added to the session."""
    dataset = datasets.dataset_named(session, definition.dataset)
    require_live("dataset", dataset)
    if not is_free(session, definition.name):
        present = registry.model_named(session, definition.name)
        raise _name_taken(definition, archived=present.archived_at is not None)
    _refuse_contradictions(definition)
    task = catalogue.from_json(definition.task)
    require_readable(task, TableSchema.from_json(dataset.schema))
    schema = task.schema()
    require_usable(session, definition.architecture, schema)
    require_augmentable(task.augment, schema, definition.architecture)
    recipe = recipe_of(definition.recipe, definition.architecture, definition.policy, task)
    require_parameters(parameters_of_model(session, definition.architecture, task, schema))
    return ModelRow(
        id=new_id("model"),
        name=definition.name,
        dataset_id=dataset.id,
        architecture=ridge_head.with_range(definition.architecture, schema).to_json(),
        task=task.to_json(),
        recipe=recipe.to_json(),
        policy=definition.policy.to_json(),
        weights_source=definition.weights_source,
        split_salt=new_split_salt(),
    )


def new_split_salt() -> bytes:
    """Return what decides, with a record's key, whether a model holds it out."""
    return os.urandom(_SALT_BYTES)


def _name_taken(definition: ModelDefinition, *, archived: bool = False) -> ConflictError:
    ended = ": it was archived, and keeps its name" if archived else ""
    return ConflictError(f"model {definition.name!r} exists already{ended}")


def _refuse_contradictions(definition: ModelDefinition) -> None:
    uploaded = definition.weights_source is WeightsSource.UPLOAD
    as_trained = definition.policy.first_release is FirstRelease.AS_TRAINED
    name = definition.architecture.name
    if uploaded and name in _TAKES_NO_WEIGHTS:
        raise InvalidInputError(f"{_TAKES_NO_WEIGHTS[name]}: it takes no weights")
    if as_trained and name in _TAKES_NO_WEIGHTS:
        raise InvalidInputError(
            f"{name} models are exact from their first release on: use first_release certify or "
            "none"
        )
    require_trained_here(definition.policy, definition.weights_source)
    require_members(definition.policy, definition.architecture.members)
    if uploaded and as_trained:
        raise InvalidInputError(
            "first_release as_trained needs weights that were trained here; use certify or none"
        )


def check_weights(content: bytes) -> None:
    """Reject a body that is not a safetensors file.

    Raises:
        InvalidInputError: the body is malformed, or has no tensor or one of an unsupported type.
        PayloadTooLargeError: its header is larger than that of any model.
    """
    header_bytes = int.from_bytes(content[:8], "little")
    if _MAX_HEADER_BYTES < header_bytes <= len(content):
        raise PayloadTooLargeError(
            f"the file's header has {header_bytes} bytes; at most {_MAX_HEADER_BYTES} are allowed"
        )
    try:  # safetensors checks the whole header against the content before it copies any of it
        tensors = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except (safetensors.SafetensorError, ValueError) as error:
        raise InvalidInputError(_not_safetensors(content)) from error
    if not tensors:
        raise InvalidInputError("the file holds no tensor")
    foreign = {tensor["dtype"] for _, tensor in tensors} - _DTYPES
    if foreign:
        raise InvalidInputError(
            f"no model has tensors of type {min(foreign)}: use {', '.join(sorted(_DTYPES))}"
        )


def _not_safetensors(content: bytes) -> str:
    if content.startswith((b"PK\x03\x04", b"\x80")):
        return (
            "the body is a PyTorch file, not safetensors: 'expunge model upload' converts it, or "
            "save it with safetensors.torch.save_file"
        )
    return "the body is not a safetensors file"


def import_weights(
    database: Database, blobs: Blobs, name: str, content: bytes, *, make: PlanMaker = make_plan
) -> ModelRow:
    """Store weights trained elsewhere and start the run that certifies their first release.

    They may have been trained on any record the dataset holds or held, so all of these count as
    part of the model, including held-out and forgotten ones.

    ``content`` is a safetensors file. Nothing is locked while ``make`` plans the run.
    """
    with database.snapshot() as session:
        model = registry.model_named(session, name)
        _require_awaits_weights(session, model)
        session.expunge(model)  # the forecast changes it, and must not be stored
        epoch = _include_all(session, model)
        found = _counted(session, model)
        lineage = counts.Lineage(session, model, counts=found)
        occasion = Occasion.of(session, model, lineage)
    forecast = occasion.forecast(make)
    with database.transaction() as session:
        blob = blobs.put(session, "imported-weights", content, dataset_id=model.dataset_id)
        # Lock only now, so that no lock is held while the object is written.
        dataset = datasets.lock_dataset(session, model.dataset_id)
        model = registry.model_named(session, name, lock=True)
        _require_awaits_weights(session, model)
        doom(session, model.imported_blob_id)
        adopt(session, blob.id)
        model.imported_blob_id = blob.id
        present = _include_all(session, model)
        known = counts.added(found)
        if known.records + known.held_out_records != dataset.pushed:  # others came meanwhile
            epoch, found = present, _counted(session, model)
        counts.begin(session, model, found, as_of=epoch)
        log.append(session, "weights.imported", model=model.id, blob=blob.id, sha256=blob.sha256)
        refuse_destroyed(session, blob.sha256)
        create_run(session, model, RunKind.CERTIFY, forecast)
    return model


def _require_awaits_weights(session: Session, model: ModelRow) -> None:
    require_live("model", model)
    if model.weights_source != WeightsSource.UPLOAD:
        raise ConflictError(f"model {model.name!r} is trained here and takes no weights")
    if model.head_version_id is not None:
        raise ConflictError(f"model {model.name!r} has its weights already")
    if repository.active_run(session, model.id) is not None:
        raise ConflictError(f"model {model.name!r} is being certified")


def _include_all(session: Session, model: ModelRow) -> int:
    """Have every record that the dataset holds or held be part of the model, a new start.

    Return the dataset's epoch.
    """
    model.is_spent = False
    epoch = session.get_one(DatasetRow, model.dataset_id).forget_epoch
    model.trained_through = datasets.highest_seq(session, model.dataset_id)
    model.trained_after_epoch = epoch
    return epoch


def _counted(session: Session, model: ModelRow) -> list[counts.Counts]:
    membership = membership_of(model)
    return [] if membership is None else counts.counted(session, model.dataset_id, membership)
