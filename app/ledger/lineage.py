"""Where a model's lineage begins: its definition, and weights brought from elsewhere."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
from sqlalchemy.orm import Session

from app.backbones.use import parameters_of_model, require_usable
from app.datasets import repository as datasets
from app.datasets.service import schema_of
from app.datasets.tables import DatasetRow
from app.domain import linear_head
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import ConflictError, InvalidInputError, PayloadTooLargeError
from app.domain.ids import new_id
from app.domain.parameters import require_parameters
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipe import TrainingRecipe
from app.domain.states import FirstRelease, RunKind, WeightsSource
from app.ledger import digests, log, repository
from app.ledger.runs import create_run, membership_facts, plan_for
from app.ledger.shapes import shape_of
from app.planning.shape import ModelShape
from app.registry import repository as registry
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


def shape_of_new(
    session: Session, definition: ModelDefinition, *, max_parameters: int
) -> ModelShape:
    """Return what planning needs to know of a model that is to be defined; nothing is locked.

    Raises:
        NotFoundError, ConflictError, InvalidInputError: as ``define_model``; or the architecture
            has more parameters than ``max_parameters``.
    """
    dataset = datasets.dataset_named(session, definition.dataset)
    model = _new_row(session, definition, dataset)
    require_parameters(
        parameters_of_model(session, definition.architecture, schema_of(dataset)),
        most=max_parameters,
    )
    return shape_of(session, model)


def define_model(
    session: Session, definition: ModelDefinition, plan: Plan | None = None
) -> ModelRow:
    """Create a model; unless its weights come from elsewhere, its training starts.

    Args:
        session: its transaction creates the model.
        definition: of the model.
        plan: for its ``shape_of_new``; made here, under the dataset's lock, if not given.

    Raises:
        NotFoundError: there is no such dataset, or no such backbone.
        ConflictError: the name is taken, the dataset is empty, or the backbone has no weights.
        PlanError, ParameterError: the policy cannot be met.
        InvalidInputError: the recipe is not for this architecture, or the policy contradicts the
            source of the weights or the mechanism, or the backbone does not fit.
    """
    dataset = datasets.dataset_named(session, definition.dataset, lock=True)
    model = _new_row(session, definition, dataset)
    session.add(model)
    session.flush()
    log.append(
        session,
        "model.defined",
        model=model.id,
        dataset=dataset.id,
        definition=digests.of_model(model),
        policy=model.policy,
    )
    plan = plan or plan_for(session, model)
    if definition.weights_source is WeightsSource.UPLOAD:
        return model
    if plan.is_tracked and definition.policy.first_release is FirstRelease.AS_TRAINED:
        raise InvalidInputError(
            f"{plan.mechanism} tracks its lineage from the start: use first_release certify or none"
        )
    remembered, _, _ = datasets.counts(session, dataset.id)
    if remembered == 0:
        raise ConflictError(f"dataset {definition.dataset!r} has no records: push some first")
    create_run(session, model, RunKind.TRAIN, plan)
    return model


def _new_row(session: Session, definition: ModelDefinition, dataset: DatasetRow) -> ModelRow:
    """Return a definition's row, checked, which nothing has added yet."""
    if registry.find_model(session, definition.name) is not None:
        raise ConflictError(f"model {definition.name!r} exists already")
    _refuse_contradictions(definition)
    require_usable(session, definition.architecture, input_shape=schema_of(dataset).shape)
    return ModelRow(
        id=new_id("model"),
        name=definition.name,
        dataset_id=dataset.id,
        architecture=definition.architecture.to_json(),
        recipe=_recipe(definition, dataset.classes).to_json(),
        policy=definition.policy.to_json(),
        weights_source=definition.weights_source,
        split_salt=os.urandom(_SALT_BYTES),
    )


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
    """Refuse a body that is no safetensors file.

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
    try:  # which compares all that the header says with what is there before it copies any of it
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
    session: Session, blobs: Blobs, name: str, content: bytes, plan: Plan | None = None
) -> ModelRow:
    """Take weights trained elsewhere and start the run that certifies their first release.

    They may have seen every record that the dataset holds or held, so all of them count as part
    of the model, held-out ones and forgotten ones included.

    Args:
        session: its transaction takes the weights.
        blobs: where they lie.
        name: the model.
        content: a safetensors file.
        plan: for its shape before that; made here, under the model's lock, if not given.

    Raises:
        NotFoundError: there is no such model.
        ConflictError: the model trains here, has a version, or is being certified.
    """
    model = registry.model_named(session, name)
    require_awaits_weights(session, model)
    blob = blobs.put(session, "imported-weights", content, dataset_id=model.dataset_id)
    # Not before: nobody waits while the object is written.
    session.refresh(model, with_for_update=True)
    require_awaits_weights(session, model)
    if model.imported_blob_id is not None:
        blobs.doom(session, model.imported_blob_id)
    blobs.adopt(session, blob.id)
    model.imported_blob_id = blob.id
    epoch = session.get_one(DatasetRow, model.dataset_id).forget_epoch
    model.trained_through = datasets.highest_seq(session, model.dataset_id)
    model.trained_after_epoch = epoch
    log.append(session, "weights.imported", **membership_facts(model))
    create_run(session, model, RunKind.CERTIFY, plan)
    return model


def require_awaits_weights(session: Session, model: ModelRow) -> None:
    """Raise ``ConflictError`` unless a model's weights are to come from elsewhere."""
    if model.weights_source != WeightsSource.UPLOAD:
        raise ConflictError(f"model {model.name!r} is trained here and takes no weights")
    if model.head_version_id is not None:
        raise ConflictError(f"model {model.name!r} has its weights already")
    if repository.active_run(session, model.id) is not None:
        raise ConflictError(f"model {model.name!r} is being certified")
