"""Which recipe a model may have: the architecture and the policy's mechanism decide."""

from app.accounting import dp_sgd
from app.domain import linear_head, ridge_head
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.policy import Policy
from app.domain.recipes.recipe import TrainingRecipe

_OF_EACH_RECORD = {
    "clip_norm": "it clips the gradient of each record itself, by its parameter gradient_clip",
    "micro_batches": "it computes the gradient of each record by itself, in parts of its own",
    "precision": "its noise covers gradients in the weights' own precision",
}


def recipe_of(
    document: object, architecture: ArchitectureSpec, policy: Policy, *, classes: int
) -> TrainingRecipe:
    """Return the recipe of a definition; the architecture's defaults complete it.

    Raises:
        InvalidInputError: a field is unknown, out of its range, or not for the architecture or the
            policy's mechanism.
    """
    if architecture.name == linear_head.NAME:
        return linear_head.recipe_of(document, classes, mechanism=policy.mechanism)
    if architecture.name == ridge_head.NAME:
        return ridge_head.recipe_of(document)
    recipe = TrainingRecipe.from_json(document)
    require_suited(recipe, policy)
    return recipe


def require_suited(recipe: TrainingRecipe, policy: Policy) -> None:
    """Raise ``InvalidInputError`` if the policy's mechanism has no use for a part of the recipe."""
    if policy.mechanism != dp_sgd.NAME:
        return
    plain = TrainingRecipe()
    for name, reason in _OF_EACH_RECORD.items():
        if getattr(recipe, name) != getattr(plain, name):
            raise InvalidInputError(f"recipe: {name} is not for {dp_sgd.NAME}: {reason}")
