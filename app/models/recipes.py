"""Which recipe a model may have: the architecture and the policy's mechanism decide."""

from app.accounting import dp_sgd
from app.domain.architectures.architecture import ENSEMBLE, ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.heads import linear_head, ridge_head
from app.domain.policy import Policy
from app.domain.recipes.recipe import TrainingRecipe
from app.domain.states import FirstRelease
from app.domain.tasks.spec import TaskSpec

_OF_EACH_RECORD = {
    "clip_norm": "it clips the gradient of each record itself, by its parameter gradient_clip",
    "micro_batches": "it computes the gradient of each record by itself, in parts of its own",
    "precision": "its noise covers gradients in the weights' own precision",
}

_SEALED_THROUGHOUT = (dp_sgd.NAME, "retraining")


def recipe_of(
    document: object, architecture: ArchitectureSpec, policy: Policy, task: TaskSpec
) -> TrainingRecipe:
    """Return the recipe of a definition; the architecture's defaults complete it."""
    recipe = _recipe_of(document, architecture, policy, task)
    require_mergeable(architecture, recipe, policy)
    return recipe


def _recipe_of(
    document: object, architecture: ArchitectureSpec, policy: Policy, task: TaskSpec
) -> TrainingRecipe:
    if architecture.name == linear_head.NAME:
        return linear_head.recipe_of(document, task, mechanism=policy.mechanism)
    if architecture.name == ridge_head.NAME:
        ridge_head.require_task(architecture, task)
        return ridge_head.recipe_of(document)
    recipe = TrainingRecipe.from_json(document)
    if architecture.name == ENSEMBLE and recipe.patience is not None:
        raise InvalidInputError(
            "recipe: patience lets held-out records decide, and no record may concern all members "
            "of an ensemble: fix the number of epochs"
        )
    require_suited(recipe, policy)
    return recipe


def require_mergeable(
    architecture: ArchitectureSpec, recipe: TrainingRecipe, policy: Policy
) -> None:
    """Raise ``InvalidInputError`` if a policy wants a merge that nothing could decide."""
    if policy.merge_margin is None:
        return
    if architecture.name != ENSEMBLE:
        raise InvalidInputError(
            "policy: merge_margin is for an ensemble, whose members' weights have an average"
        )
    if recipe.held_out_fraction == 0:
        raise InvalidInputError(
            "policy: merge_margin needs held-out records, which decide whether the average is "
            "offered: set held_out_fraction in the recipe"
        )


def require_suited(recipe: TrainingRecipe, policy: Policy) -> None:
    """Raise ``InvalidInputError`` if the policy's mechanism has no use for a part of the recipe."""
    openly = policy.first_release is FirstRelease.AS_TRAINED and policy.mechanism != dp_sgd.NAME
    if recipe.patience is not None and policy.mechanism in _SEALED_THROUGHOUT and not openly:
        raise InvalidInputError(
            f"recipe: patience is for training outside of the seal, and under {policy.mechanism} "
            "all of it is inside: fix the number of epochs"
        )
    if policy.mechanism != dp_sgd.NAME:
        return
    plain = TrainingRecipe()
    for name, reason in _OF_EACH_RECORD.items():
        if getattr(recipe, name) != getattr(plain, name):
            raise InvalidInputError(f"recipe: {name} is not for {dp_sgd.NAME}: {reason}")
