"""Linear heads: models with a convex loss whose constants the service enforces.

Any task whose loss has bounds (``app.domain.tasks.spec.Bounds``), on features of norm at most 1 (a
constant feature for the bias counts in the norm). Mechanisms that track drift need a bounded slope,
too. docs/guarantees.md, section 6.
"""

import math
from collections.abc import Mapping
from typing import Any

from app.domain.columns import CategoryColumn, NumberColumn
from app.domain.errors import InvalidInputError
from app.domain.recipes import TrainingRecipe
from app.domain.tasks.built_in import RegressionSpec
from app.domain.tasks.spec import Bounds, TaskSpec

NAME = "linear_head"
DEFAULT_WEIGHT_DECAY = 0.0001
"""Without noise, less decay is better: docs/models.md has what was measured."""

TRACKED_WEIGHT_DECAY = 0.01
"""The default under a mechanism that counts drift: with less, steps forget more slowly."""

_PLAIN: Mapping[str, Any] = {
    "optimizer": "sgd",
    "momentum": 0,
    "schedule": "constant",
    "warmup_fraction": None,
    "groups": (),
    "micro_batches": 1,
    "clip_norm": None,
    "precision": "float32",
    "patience": None,
}
"""All that a history of drift has numbers for."""

_WITHOUT_NOISE = frozenset({"auto", "exact_training", "retraining"})
DEFAULT_BIAS = 0.1


def bounds_of(task: TaskSpec) -> Bounds:
    """Return the bounds of a task's loss in a linear head; ``InvalidInputError`` if it has none."""
    if task.bounds is None:
        loss = f" by the loss {task.loss}" if isinstance(task, RegressionSpec) else ""
        raise InvalidInputError(
            f"a linear_head counts on a convex loss whose curvature is bounded, and "
            f"{task.name}{loss} is none: use classification, multi_label or regression by the "
            "loss huber or squared, or another architecture"
        )
    return task.bounds


def recipe_of(document: object, task: TaskSpec, *, mechanism: str) -> TrainingRecipe:
    """Return the recipe of a JSON object; the weight decay depends on the policy's mechanism."""
    bounds = bounds_of(task)
    plain: dict[str, Any] = {
        "momentum": 0.0,
        "schedule": "constant",
        "weight_decay": DEFAULT_WEIGHT_DECAY
        if mechanism in _WITHOUT_NOISE
        else TRACKED_WEIGHT_DECAY,
    }
    given = TrainingRecipe.fields_of(document)
    decayed = TrainingRecipe(**{**plain, **given})
    rate = {"learning_rate": 1 / (bounds.smoothness + decayed.weight_decay)}
    recipe = TrainingRecipe(**{**plain, **rate, **given})
    check_recipe(recipe, bounds)
    return recipe


def norm_for(task: TaskSpec) -> float | None:
    """Return a ``feature_norm`` for a table's columns: what few rows exceed; None for a tensor.

    Scaled numbers and categories have sizes of about 1, and a number's splines one below it, so it
    follows from how many columns there are: no record has a part in it.
    """
    columns = task.input_columns
    if not all(isinstance(each, NumberColumn | CategoryColumn) for each in columns):
        return None
    return float(f"{2 * math.sqrt(len(columns)):.1g}")


def check_recipe(recipe: TrainingRecipe, bounds: Bounds) -> None:
    """Raise ``InvalidInputError`` unless a recipe is plain descent, whose drift can be tracked."""
    for name, plain in _PLAIN.items():
        if getattr(recipe, name) != plain:
            raise InvalidInputError(
                "recipe: a linear_head is trained by plain descent: optimizer sgd, momentum 0, "
                f"schedule constant, and no {name}"
            )
    if recipe.weight_decay <= 0:
        raise InvalidInputError("recipe: a linear_head needs weight_decay above 0")
    largest = 1 / (bounds.smoothness + recipe.weight_decay)
    if recipe.learning_rate > largest * (1 + 1e-12):
        raise InvalidInputError(
            "recipe: this linear_head needs learning_rate of at most "
            f"1 / (smoothness + weight_decay) = {largest:.6g}"
        )
