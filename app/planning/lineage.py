"""Tracked lineages: how they are trained, step by step, so that later requests can be counted."""

import math
from dataclasses import dataclass

from app.accounting.histories.history import History, Recipe, Steps
from app.domain.errors import PlanError
from app.planning.shape import ConvexShape, ModelShape

# Per coordinate of a released head. Features have norm at most 1, so this is also how far the
# noise moves one logit.
DEFAULT_RELEASE_NOISE = 0.05
NEEDS_A_HEAD = (
    "needs a linear_head that was trained here and whose history is known from the start: its "
    "loss is convex with constants that are enforced"
)
NEEDS_A_SLOPE = (
    "counts how far a record moves the weights, and the slope of the squared loss has no bound: "
    "use the loss huber, or exact_training"
)


@dataclass(frozen=True)
class TrackedLineage:
    """A lineage of a linear head: a new one with its training ahead, or one that goes on.

    Attributes:
        training_steps: how many steps a new lineage's training takes; 0 for one that goes on.
    """

    history: History
    training_steps: int

    @property
    def is_new(self) -> bool:
        """Whether the training is ahead."""
        return self.training_steps > 0

    def trained(self, *, noise_std: float = 0.0) -> History:
        """Return the history at the end of training, each of whose steps adds the stated noise."""
        return self.history.after_steps(self.training_steps, noise_std=noise_std)

    def refuse_without_noise(self) -> None:
        """Raise ``PlanError`` where the lineage has steps that added no noise."""
        if not self.is_new and not self.history.starts_noisy:
            raise PlanError(
                "needs noise at every step from the first of training on, and this lineage has "
                "steps without: use tracked_release or retraining"
            )

    def step_noise(self) -> float:
        """Return the noise of a step by default: as before, or what leaves a release's default."""
        for event in reversed(self.history.events):
            if isinstance(event, Steps) and event.noise_std > 0:
                return event.noise_std
        return DEFAULT_RELEASE_NOISE * math.sqrt(1 - self.history.recipe.contraction**2)

    @property
    def settings(self) -> dict[str, float]:
        """What the update rule needs, steps and noise apart."""
        recipe = self.history.recipe
        settings: dict[str, float] = {
            "learning_rate": recipe.learning_rate,
            "weight_decay": recipe.weight_decay,
            "batch_size": recipe.batch_size,
            "batches": recipe.batches,
            "training_steps": self.training_steps,
        }
        if recipe.radius is not None:
            settings["radius"] = recipe.radius
        return settings


def head_of(shape: ModelShape) -> ConvexShape:
    """Return the linear head, or raise ``PlanError``."""
    if shape.convex is None:
        raise PlanError(NEEDS_A_HEAD)
    return shape.convex


def lineage_of(
    shape: ModelShape,
    *,
    full_batch: bool = False,
    learning_rate: float | None = None,
    radius: float | None = None,
) -> TrackedLineage:
    """Return the lineage that goes on, or a new one, at the recipe's rate if none is given."""
    _slope_of(head_of(shape))
    history = None if shape.tracking is None else shape.tracking.history
    if history is None:
        if not shape.is_new:
            raise PlanError(NEEDS_A_HEAD)
        return new_lineage(shape, full_batch=full_batch, learning_rate=learning_rate, radius=radius)
    if full_batch and history.recipe.batches != 1:
        raise PlanError("the lineage was trained in batches, not on the whole data at once")
    if learning_rate not in (None, history.recipe.learning_rate):
        raise PlanError("the lineage was trained with another learning rate")
    if radius not in (None, history.recipe.radius):
        raise PlanError("the lineage was trained with another radius, or with none")
    return TrackedLineage(history=history, training_steps=0)


def new_lineage(
    shape: ModelShape,
    *,
    full_batch: bool = False,
    learning_rate: float | None = None,
    radius: float | None = None,
) -> TrackedLineage:
    """Return a lineage that begins with a training from nothing, of the retained records alone."""
    head = head_of(shape)
    records = shape.retained
    batch_size = records if full_batch else min(shape.batch_size, records)
    recipe = Recipe(
        learning_rate=head.learning_rate if learning_rate is None else learning_rate,
        weight_decay=head.weight_decay,
        smoothness=head.smoothness,
        lipschitz=_slope_of(head),
        batch_size=batch_size,
        batches=-(-records // batch_size),
        radius=radius,
        dimension=shape.dimension,
    )
    return TrackedLineage(
        history=History(recipe),
        training_steps=max(1, round(shape.recipe_epochs * recipe.batches)),
    )


def _slope_of(head: ConvexShape) -> float:
    if head.lipschitz is None:
        raise PlanError(NEEDS_A_SLOPE)
    return head.lipschitz
