"""Linear heads: models with a convex loss whose constants the service enforces.

Logistic regression for two classes, softmax for more, on features of norm at most 1 (a constant
feature for the bias counts in the norm). docs/guarantees.md, section 6.
"""

import math
from collections.abc import Mapping
from typing import Any

from app.domain.errors import InvalidInputError
from app.domain.recipes.recipe import TrainingRecipe

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
}
"""All that a history of drift has numbers for."""

_WITHOUT_NOISE = frozenset({"auto", "exact_training", "retraining"})
DEFAULT_BIAS = 0.1


def smoothness(classes: int) -> float:
    """Return the largest curvature of one record's loss: 1/4 for two classes, 1/2 for more."""
    return 0.25 if classes == 2 else 0.5


def lipschitz(classes: int) -> float:
    """Return the largest gradient of one record's loss: 1 for two classes, sqrt(2) for more."""
    return 1.0 if classes == 2 else math.sqrt(2)


def recipe_of(document: object, classes: int, *, mechanism: str) -> TrainingRecipe:
    """Return the recipe of a JSON object; what it leaves out becomes plain descent.

    The weight decay depends on the mechanism that the policy names, and on no record.

    Raises:
        InvalidInputError: a field is unknown, out of its range, or not for a linear head.
    """
    plain: dict[str, Any] = {
        "momentum": 0.0,
        "schedule": "constant",
        "weight_decay": DEFAULT_WEIGHT_DECAY
        if mechanism in _WITHOUT_NOISE
        else TRACKED_WEIGHT_DECAY,
    }
    given = TrainingRecipe.fields_of(document)
    decayed = TrainingRecipe(**{**plain, **given})
    rate = {"learning_rate": 1 / (smoothness(classes) + decayed.weight_decay)}
    recipe = TrainingRecipe(**{**plain, **rate, **given})
    check_recipe(recipe, classes)
    return recipe


def check_recipe(recipe: TrainingRecipe, classes: int) -> None:
    """Refuse a recipe under which drift could not be tracked.

    Raises:
        InvalidInputError: the optimiser is not plain gradient descent with weight decay at a
            constant rate of at most 1 / (smoothness + weight_decay).
    """
    for name, plain in _PLAIN.items():
        if getattr(recipe, name) != plain:
            raise InvalidInputError(
                "recipe: a linear_head is trained by plain descent: optimizer sgd, momentum 0, "
                f"schedule constant, and no {name}"
            )
    if recipe.weight_decay <= 0:
        raise InvalidInputError("recipe: a linear_head needs weight_decay above 0")
    largest = 1 / (smoothness(classes) + recipe.weight_decay)
    if recipe.learning_rate > largest * (1 + 1e-12):
        raise InvalidInputError(
            f"recipe: a linear_head of {classes} classes needs learning_rate of at most "
            f"1 / (smoothness + weight_decay) = {largest:.6g}"
        )
