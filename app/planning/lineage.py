"""Tracked lineages: how they are trained, step by step, so that later requests can be counted."""

from dataclasses import dataclass, replace

from app.accounting.drift import DriftLedger, Recipe
from app.domain.errors import PlanError
from app.planning.shape import ConvexShape, ModelShape

NEEDS_A_HEAD = (
    "needs a linear_head that was trained here and whose drift was tracked from the start: its "
    "loss is convex with constants that are enforced"
)


@dataclass(frozen=True)
class TrackedLineage:
    """A lineage of a linear head: a new one with its training ahead, or one that goes on.

    Attributes:
        ledger: every step up to the new request, the training of a new lineage included.
        drift: D, how far the worlds are apart now.
        noise_std: of every step so far; None for a new lineage, which may choose.
        training_steps: how many steps the training takes or took.
    """

    ledger: DriftLedger
    drift: float
    noise_std: float | None
    training_steps: int

    @property
    def job(self) -> dict[str, float]:
        """What the accountants of drift need beside the noise."""
        recipe = self.ledger.recipe
        return {
            "drift": self.drift,
            "learning_rate": recipe.learning_rate,
            "weight_decay": recipe.weight_decay,
            "smoothness": recipe.smoothness,
        }

    @property
    def settings(self) -> dict[str, float]:
        """What the update rule needs, noise apart."""
        recipe = self.ledger.recipe
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
    """Return the lineage that goes on, or the one that would begin.

    Args:
        shape: the model.
        full_batch: whether the mechanism takes the whole data as one batch.
        learning_rate: the mechanism's own; None takes the recipe's.
        radius: of a new lineage's projection.

    Raises:
        PlanError: there is no linear head, or the lineage goes on in another way.
    """
    head = head_of(shape)
    if shape.tracking is None:
        fresh = new_lineage(
            shape, full_batch=full_batch, learning_rate=learning_rate, radius=radius
        )
        if shape.is_new and head.drift == head.noise_std == 0:
            return fresh
        return replace(fresh, drift=head.drift, noise_std=head.noise_std)
    ledger = shape.tracking.ledger
    if ledger is None:
        raise PlanError(NEEDS_A_HEAD)
    if full_batch and ledger.recipe.batches != 1:
        raise PlanError("the lineage was trained in batches, not on the whole data at once")
    if learning_rate not in (None, ledger.recipe.learning_rate):
        raise PlanError("the lineage was trained with another learning rate")
    return TrackedLineage(
        ledger=ledger,
        drift=ledger.drift(),
        noise_std=shape.tracking.settings.get("noise_std", 0.0),
        training_steps=int(shape.tracking.settings["training_steps"]),
    )


def new_lineage(
    shape: ModelShape,
    *,
    full_batch: bool = False,
    learning_rate: float | None = None,
    radius: float | None = None,
) -> TrackedLineage:
    """Return a lineage that begins with a training from nothing."""
    head = head_of(shape)
    records = shape.trained_on
    batch_size = records if full_batch else min(shape.batch_size, records)
    recipe = Recipe(
        learning_rate=head.learning_rate if learning_rate is None else learning_rate,
        weight_decay=head.weight_decay,
        smoothness=head.smoothness,
        lipschitz=head.lipschitz,
        batch_size=batch_size,
        batches=-(-records // batch_size),
        radius=radius,
    )
    training_steps = max(1, round(shape.recipe_epochs * recipe.batches))
    return TrackedLineage(
        ledger=DriftLedger(recipe).after_steps(training_steps),
        drift=0.0,
        noise_std=None,
        training_steps=training_steps,
    )
