"""The input that planning needs about a model, read from the ledger."""

from dataclasses import replace

from sqlalchemy.orm import Session

from app.domain.architectures import Member, out_of
from app.domain.errors import ParameterError
from app.domain.heads import boosted_trees, linear_head, ridge_head
from app.domain.plan import TrainingKind
from app.domain.recipes import TrainingRecipe
from app.domain.states import WeightsSource
from app.planning.shape import (
    ConvexShape,
    DpTrainingShape,
    EnsembleShape,
    ModelShape,
    RidgeShape,
    TreesShape,
)
from app.planning.tracking import Tracking
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.membership import membership_of
from app.registry.tables import ModelRow
from app.registry.tasks import task_of
from app.registry.training_set import TrainingSet


def shape_of(
    session: Session,
    model: ModelRow,
    training_set: TrainingSet | None = None,
    *,
    dimension: int | None = None,
    anew: bool = False,
) -> ModelShape:
    """Return the size of a model's next run; ``dimension`` counts its network's weights.

    ``anew`` is for a run that trains a new lineage, whatever there is. Records are counted where
    ``training_set`` is given: what a run does may follow from those alone that it may learn from.
    """
    recipe = TrainingRecipe.from_json(model.recipe)
    remembered, _, _ = datasets.counts(session, model.dataset_id)
    shape = ModelShape(
        retained=max(1, round(remembered * (1 - recipe.held_out_fraction))),
        batch_size=recipe.batch_size,
        recipe_epochs=recipe.epochs,
        dimension=dimension,
        earlier_releases=registry.next_number(session, model.id) - 1,
        trained_here=model.weights_source == WeightsSource.TRAIN,
        is_spent=model.is_spent and not anew,
        begins_again=anew or model.head_version_id is None,
        convex=_linear_head(model),
        ridge=_ridge_head(model),
        trees=_boosted_trees(model),
        ensemble=_ensemble(model),
        rough=task_of(model).rough,
    )
    counts = training_set is not None or model.tracking is not None or shape.convex is not None
    if training_set is None and not anew and membership_of(model) is not None:
        training_set = TrainingSet(session, model)
    if shape.is_new:
        return _new(shape, training_set)
    if training_set is not None and shape.ensemble is not None:
        return _with_concerned(shape, session, model, training_set)
    if training_set is None or not counts:
        return shape
    if model.tracking is not None:
        shape = _tracked(shape, session, model, training_set)
    # A linear head may be trained anew, in batches of exactly the retained records.
    begun_at_epoch = 0 if shape.tracking is None else shape.tracking.begun_at_epoch
    return _counted(shape, training_set, begun_at_epoch=begun_at_epoch)


def _counted(
    shape: ModelShape, training_set: TrainingSet, *, begun_at_epoch: int = 0
) -> ModelShape:
    """Count the records of a training and those left of them, in place of the expected numbers."""
    return replace(
        shape,
        retained=max(1, training_set.retained),
        records=max(1, training_set.read(begun_at_epoch)),
    )


def _new(shape: ModelShape, training_set: TrainingSet | None) -> ModelShape:
    """Complete the shape of an untrained lineage."""
    if training_set is None:
        return shape
    records = max(1, training_set.read(0))
    return replace(shape, retained=records, records=records)


def _tracked(
    shape: ModelShape, session: Session, model: ModelRow, training_set: TrainingSet
) -> ModelShape:
    """Complete the shape of a tracked lineage with what it has to forget now."""
    tracking = Tracking.from_json(model.tracking or {})
    begun = tracking.begun_at_epoch
    head = registry.head_version(session, model)
    covered = begun if head is None else head.covers_epoch
    forgotten = training_set.read(begun) - training_set.retained
    new = training_set.forgotten_after(max(begun, covered))
    history = tracking.history
    if history is not None and new:
        try:
            history = history.after_request(
                training_set.by_batch(new, history.recipe.batch_size, begun_at_epoch=begun)
            )
        except ParameterError:
            history = None  # it is full; nothing can be added, but retraining begins a new one
    return replace(
        shape,
        forgotten=forgotten,
        newly_forgotten=len(new),
        dp_training=_dp_training(tracking, forgotten=forgotten),
        tracking=replace(tracking, history=history),
    )


def _linear_head(model: ModelRow) -> ConvexShape | None:
    """Return the constants that the service enforces; None unless such a head is trained here."""
    trained_here = model.weights_source == WeightsSource.TRAIN
    if model.architecture["name"] != linear_head.NAME or not trained_here:
        return None
    recipe = TrainingRecipe.from_json(model.recipe)
    bounds = linear_head.bounds_of(task_of(model))
    return ConvexShape(
        lipschitz=bounds.lipschitz,
        smoothness=bounds.smoothness,
        weight_decay=recipe.weight_decay,
        learning_rate=recipe.learning_rate,
    )


def _ridge_head(model: ModelRow) -> RidgeShape | None:
    """Return a ridge head's options; None for other architectures."""
    if model.architecture["name"] != ridge_head.NAME:
        return None
    return RidgeShape(**model.architecture["options"])


def _boosted_trees(model: ModelRow) -> TreesShape | None:
    """Return the options of boosted trees; None for other architectures."""
    if model.architecture["name"] != boosted_trees.NAME:
        return None
    return TreesShape(**{**boosted_trees.DEFAULTS, **model.architecture["options"]})


def _ensemble(model: ModelRow) -> EnsembleShape | None:
    """Return how many networks an ensemble averages; None for other architectures."""
    members = model.architecture.get("members")
    return None if members is None else EnsembleShape(members)


def _with_concerned(
    shape: ModelShape, session: Session, model: ModelRow, training_set: TrainingSet
) -> ModelShape:
    """Count a lineage's records, and the members that it has to train anew."""
    head = registry.head_version(session, model)
    if shape.ensemble is None or head is None:
        return shape
    out = out_of(map(Member.from_json, head.members or ()))
    named = {record.member for record in training_set.forgotten_after(head.covers_epoch)}
    ensemble = replace(
        shape.ensemble,
        concerned=len(named - out.keys()) or shape.ensemble.concerned,
        out=len(out),
    )
    return replace(_counted(shape, training_set), ensemble=ensemble)


def _dp_training(tracking: Tracking, *, forgotten: int) -> DpTrainingShape | None:
    settings = tracking.settings
    if tracking.training is not TrainingKind.PRIVATE:
        return None
    return DpTrainingShape(
        noise_multiplier=settings["noise_multiplier"],
        sampling_rate=settings["sampling_rate"],
        steps=int(settings["private_steps"]),
        forgotten=forgotten,
    )
