"""Where a model's lineage begins: its definition, and weights brought from elsewhere."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import log
from app.backbones.use import parameters_of_model, require_usable
from app.database import Database
from app.datasets import repository as datasets
from app.datasets.service import schema_of
from app.datasets.tables import DatasetRow
from app.domain import linear_head
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import ConflictError, InvalidInputError, PayloadTooLargeError
from app.domain.ids import new_id
from app.domain.parameters import require_parameters
from app.domain.policy import Policy
from app.domain.recipe import TrainingRecipe
from app.domain.states import FirstRelease, RunKind, WeightsSource
from app.ledger import repository
from app.ledger.runs import create_run, membership_facts
from app.planning.planner import make_plan
from app.registry import repository as registry
from app.registry.forecasts import Occasion, PlanMaker
from app.registry.tables import ModelRow
from app.storage.blobs import Blobs

_SALT_BYTES = 32
_MAX_HEADER_BYTES = 4 << 20
_DTYPES = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"}


@dataclass(frozen=True)
class ModelDefinition:
    """Everything that a caller decides about a model.

    ``recipe`` names some fields of ``TrainingRecipe``; the others take the architecture's defaults.
    """

    name: str
    dataset: str
    architecture: ArchitectureSpec
    recipe: Mapping[str, Any]
    policy: Policy
    weights_source: WeightsSource


def define_model(
    database: Database,
    definition: ModelDefinition,
    *,
    max_parameters: int | None = None,
    make: PlanMaker = make_plan,
) -> ModelRow:
    """Create a model; unless its weights come from elsewhere, its training starts.

    Args:
        database: where the model is created, and that is logged.
        definition: of the model.
        max_parameters: how many the architecture may have, if that is limited.
        make: makes the plan of the first run, while nothing is locked.

    Raises:
        NotFoundError: the dataset or the backbone does not exist.
        ConflictError: the name is taken, the dataset is empty, or the backbone has no weights.
        PlanError, ParameterError: the policy cannot be met.
        InvalidInputError: the recipe is not for this architecture, which has too many parameters,
            or the policy contradicts the source of the weights or the mechanism, or the backbone
            does not fit.
    """
    with database.transaction() as session:
        model = _definable(session, definition, max_parameters)
        remembered, _, _ = datasets.counts(session, model.dataset_id)
        occasion = Occasion.of(session, model)
    forecast = occasion.forecast(make)
    trains = definition.weights_source is WeightsSource.TRAIN
    forecast.require_tracked_start()
    if trains and remembered == 0:
        raise ConflictError(f"dataset {definition.dataset!r} has no records: push some first")
    try:
        with database.transaction() as session:
            model = _definable(session, definition)
            session.add(model)
            session.flush()
            log.append(
                session,
                "model.defined",
                model=model.id,
                dataset=model.dataset_id,
                definition=registry.digest_of(model),
                policy=model.policy,
            )
            if trains:
                create_run(session, model, RunKind.TRAIN, forecast)
    except IntegrityError as error:  # another call was faster
        raise _name_taken(definition) from error
    return model


def _definable(
    session: Session, definition: ModelDefinition, max_parameters: int | None = None
) -> ModelRow:
    """Return the model that a definition describes, which the session does not hold yet."""
    dataset = datasets.dataset_named(session, definition.dataset)
    if registry.find_model(session, definition.name) is not None:
        raise _name_taken(definition)
    _refuse_contradictions(definition)
    require_usable(session, definition.architecture, input_shape=schema_of(dataset).shape)
    recipe = _recipe(definition, dataset.classes)
    if max_parameters is not None:
        require_parameters(
            parameters_of_model(session, definition.architecture, schema_of(dataset)),
            most=max_parameters,
        )
    return ModelRow(
        id=new_id("model"),
        name=definition.name,
        dataset_id=dataset.id,
        architecture=definition.architecture.to_json(),
        recipe=recipe.to_json(),
        policy=definition.policy.to_json(),
        weights_source=definition.weights_source,
        split_salt=os.urandom(_SALT_BYTES),
    )


def _name_taken(definition: ModelDefinition) -> ConflictError:
    return ConflictError(f"model {definition.name!r} exists already")


def _recipe(definition: ModelDefinition, classes: int) -> TrainingRecipe:
    if definition.architecture.name == linear_head.NAME:
        return linear_head.recipe_of(definition.recipe, classes)
    return TrainingRecipe.from_json(definition.recipe)


def _refuse_contradictions(definition: ModelDefinition) -> None:
    uploaded = definition.weights_source is WeightsSource.UPLOAD
    if uploaded and definition.policy.first_release is FirstRelease.AS_TRAINED:
        raise InvalidInputError(
            "first_release as_trained needs weights that were trained here; use certify or none"
        )


def check_weights(content: bytes) -> None:
    """Refuse a body that is not a safetensors file.

    Raises:
        InvalidInputError: the body cannot be read, or holds no tensor, or one of a type that no
            model has.
        PayloadTooLargeError: its header is larger than that of any model.
    """
    header_bytes = int.from_bytes(content[:8], "little")
    if _MAX_HEADER_BYTES < header_bytes <= len(content):
        raise PayloadTooLargeError(
            f"the file's header has {header_bytes} bytes; {_MAX_HEADER_BYTES} are taken"
        )
    try:  # it compares the whole header with the content before it copies any of it
        tensors = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except (safetensors.SafetensorError, ValueError) as error:
        raise InvalidInputError("the body is not a safetensors file") from error
    if not tensors:
        raise InvalidInputError("the file holds no tensor")
    foreign = {tensor["dtype"] for _, tensor in tensors} - _DTYPES
    if foreign:
        raise InvalidInputError(
            f"no model has tensors of type {min(foreign)}: use {', '.join(sorted(_DTYPES))}"
        )


def import_weights(
    database: Database, blobs: Blobs, name: str, content: bytes, *, make: PlanMaker = make_plan
) -> ModelRow:
    """Take weights trained elsewhere and start the run that certifies their first release.

    They may have been trained on every record that the dataset holds or held, so all of them count
    as part of the model, held-out ones and forgotten ones included.

    Args:
        database: where the weights are taken, and that is logged.
        blobs: where they are stored.
        name: the model.
        content: a safetensors file.
        make: makes the plan of the run, while nothing is locked.

    Raises:
        NotFoundError: the model does not exist.
        ConflictError: the model trains here, has a version, or is being certified.
        PlanError, ParameterError: the policy cannot be met.
    """
    with database.transaction() as session:
        model = registry.model_named(session, name)
        _require_awaits_weights(session, model)
        session.expunge(model)  # to see what its run would be like
        _count_all(session, model)
        occasion = Occasion.of(session, model)
    forecast = occasion.forecast(make)
    with database.transaction() as session:
        blob = blobs.put(session, "imported-weights", content, dataset_id=model.dataset_id)
        # Only now: no lock is held while the object is written.
        datasets.lock_dataset(session, model.dataset_id)
        model = registry.model_named(session, name, lock=True)
        _require_awaits_weights(session, model)
        if model.imported_blob_id is not None:
            blobs.doom(session, model.imported_blob_id)
        blobs.adopt(session, blob.id)
        model.imported_blob_id = blob.id
        _count_all(session, model)
        log.append(session, "weights.imported", blob=blob.id, **membership_facts(model))
        create_run(session, model, RunKind.CERTIFY, forecast)
    return model


def _require_awaits_weights(session: Session, model: ModelRow) -> None:
    if model.weights_source != WeightsSource.UPLOAD:
        raise ConflictError(f"model {model.name!r} is trained here and takes no weights")
    if model.head_version_id is not None:
        raise ConflictError(f"model {model.name!r} has its weights already")
    if repository.active_run(session, model.id) is not None:
        raise ConflictError(f"model {model.name!r} is being certified")


def _count_all(session: Session, model: ModelRow) -> None:
    """Count every record that the dataset holds or held as part of the model."""
    epoch = session.get_one(DatasetRow, model.dataset_id).forget_epoch
    model.trained_through = datasets.highest_seq(session, model.dataset_id)
    model.trained_after_epoch = epoch
