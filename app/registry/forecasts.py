"""Plans of runs that have not begun.

Planning may take seconds, so it happens before any lock is taken: one transaction reads its input,
another creates the run if the model has not changed since. The number of records may change
meanwhile; a run is planned again when it begins, on exactly the records it then fixes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy.orm import Session

from app.domain.architectures import ArchitectureSpec, out_of
from app.domain.errors import ConflictError, InvalidInputError, ParameterError
from app.domain.heads import linear_head, ridge_head
from app.domain.plan import Plan, TrainingKind
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.states import FirstRelease, WeightsSource
from app.planning.planner import make_plan
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
from app.registry.counts import Lineage
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


class PlanMaker(Protocol):
    """Makes plans as ``planner.make_plan`` does, possibly within limits."""

    def __call__(self, *, policy: Policy, shape: ModelShape) -> Plan:
        """Return the plan of one run."""


@dataclass(frozen=True)
class Occasion:
    """The input for planning a model's next run; ``head_version_id`` is what it starts from."""

    policy: Policy
    shape: ModelShape
    head_version_id: str | None

    @classmethod
    def of(
        cls,
        session: Session,
        model: ModelRow,
        lineage: Counted | None = None,
        *,
        policy: Policy | None = None,
        dimension: int | None = None,
        anew: bool = False,
        refills: bool = False,
    ) -> "Occasion":
        """Read it; no lock is needed.

        Without a ``dimension`` the plan counts weights in real arithmetic; ``anew`` is for a run
        that trains a new lineage, whatever there is, and ``refills`` for one of an ensemble that
        trains the members that are out. The model's ``lineage`` is as its counts are kept, unless
        another one is given: what a run does may follow from those records alone that it may learn
        from.
        """
        if lineage is None and not anew:
            lineage = Lineage.of(session, model)
        shape = shape_of(session, model, lineage, dimension=dimension, anew=anew)
        if shape.ensemble is not None:
            shape = replace(shape, ensemble=replace(shape.ensemble, refills=refills))
        return cls(policy or Policy.from_json(model.policy), shape, model.head_version_id)

    def forecast(self, make: PlanMaker = make_plan) -> "Forecast":
        """Make the plan; this may take seconds.

        Raises:
            PlanError, ParameterError, CalibrationError: the policy cannot be met.
        """
        return Forecast(make(policy=self.policy, shape=self.shape), self)

    def fits(self, model: ModelRow) -> bool:
        """Return whether the locked model is unchanged since it was read."""
        return (
            Policy.from_json(model.policy) == self.policy
            and model.head_version_id == self.head_version_id
        )


@dataclass(frozen=True)
class Forecast:
    """The plan of a run that has not begun, and its input."""

    plan: Plan
    occasion: Occasion

    def require_tracked_start(self) -> None:
        """Check that a lineage that must be tracked is tracked from its training on.

        Raises:
            InvalidInputError: its policy trains and releases it without tracking.
        """
        occasion, plan = self.occasion, self.plan
        as_trained = occasion.policy.first_release is FirstRelease.AS_TRAINED
        if occasion.shape.is_new and plan.is_tracked and as_trained:
            raise InvalidInputError(
                f"{plan.mechanism} tracks its lineage from the start: use first_release certify or "
                "none"
            )

    def require_fit(self, model: ModelRow) -> None:
        """Check that the model is unchanged since the plan was made, or raise ``ConflictError``."""
        if not self.occasion.fits(model):
            raise ConflictError(f"model {model.name!r} has changed meanwhile: try again")


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
    task, architecture = task_of(model), ArchitectureSpec.from_json(model.architecture)
    members, is_ridge = architecture.members, architecture.name == ridge_head.NAME
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
        ridge=RidgeShape(**architecture.options) if is_ridge else None,
        trees=TreesShape.of(architecture, task, patience=recipe.patience),
        ensemble=None if members is None else EnsembleShape(members),
        rough=task.rough,
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
