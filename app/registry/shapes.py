"""The input that planning needs about a model, read from the ledger."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from sqlalchemy.orm import Session

from app.domain.architectures import out_of
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
from app.registry.tables import ModelRow
from app.registry.tasks import task_of
from app.registry.training_set import TrainingRecord


class Counted(Protocol):
    """What planning asks about the records of a lineage; see ``TrainingSet``."""

    @property
    def retained(self) -> int:
        """How many records there are to learn from."""

    def read(self, begun_at_epoch: int, /) -> int:
        """Return how many a training that began at an epoch read."""

    def forgotten_after(self, epoch: int) -> Sequence[TrainingRecord]:
        """Return those to learn from that were forgotten after an epoch."""

    def by_batch(
        self, records: Iterable[TrainingRecord], batch_size: int, *, begun_at_epoch: int
    ) -> Counter[int]:
        """Count records by the fixed batch of the training that read them."""


def shape_of(
    session: Session,
    model: ModelRow,
    lineage: Counted | None,
    *,
    dimension: int | None = None,
    anew: bool = False,
) -> ModelShape:
    """Return the size of a model's next run; ``dimension`` counts its network's weights.

    ``anew`` is for a run that trains a new lineage, whatever there is. Without a ``lineage`` the
    numbers are those to expect.
    """
    recipe = TrainingRecipe.from_json(model.recipe)
    remembered, _, _ = datasets.counts(session, model.dataset_id)
    members = model.architecture.get("members")
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
        ensemble=None if members is None else EnsembleShape(members),
        rough=task_of(model).rough,
    )
    if lineage is None:
        return shape
    if shape.is_new:
        records = max(1, lineage.read(0))
        return replace(shape, retained=records, records=records)
    head = registry.head_version(session, model)
    if shape.ensemble is not None and head is not None:
        out = out_of(registry.members_of(head))
        named = {record.member for record in lineage.forgotten_after(head.covers_epoch)}
        concerned = len(named - out.keys()) or shape.ensemble.concerned
        ensemble = replace(shape.ensemble, concerned=concerned, out=len(out))
        shape = replace(shape, ensemble=ensemble)
    begun_at_epoch = 0
    if model.tracking is not None:
        tracking = Tracking.from_json(model.tracking)
        begun_at_epoch = tracking.begun_at_epoch
        covered = begun_at_epoch if head is None else head.covers_epoch
        shape = _tracked(shape, tracking, covered, lineage)
    # A linear head may be trained anew, in batches of exactly the retained records.
    read = lineage.read(begun_at_epoch)
    return replace(shape, retained=max(1, lineage.retained), records=max(1, read))


def _tracked(shape: ModelShape, tracking: Tracking, covered: int, lineage: Counted) -> ModelShape:
    """Complete the shape of a tracked lineage with what it has to forget now."""
    begun = tracking.begun_at_epoch
    forgotten = lineage.read(begun) - lineage.retained
    new = lineage.forgotten_after(max(begun, covered))
    history = tracking.history
    if history is not None and new:
        try:
            history = history.after_request(
                lineage.by_batch(new, history.recipe.batch_size, begun_at_epoch=begun)
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
    return TreesShape(**boosted_trees.options_of(model.architecture["options"]))


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
