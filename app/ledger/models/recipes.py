"""Which recipe a model may have: the architecture and the policy's mechanism decide."""

from collections.abc import Mapping
from typing import Any

from app.accounting import dp_sgd
from app.domain.architectures import ENSEMBLE, ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.heads import boosted_trees, linear_head, ridge_head
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.domain.states import FirstRelease
from app.domain.tasks.spec import TaskSpec

_OF_EACH_RECORD = {
    "clip_norm": "it clips the gradient of each record itself, by its parameter gradient_clip",
    "micro_batches": "it computes the gradient of each record by itself, in parts of its own",
    "precision": "its noise covers gradients in the weights' own precision",
}

_OF_SGD = frozenset({"optimizer", "learning_rate", "momentum", "groups"})
ADAMW_RATE = 0.01
"""The default; a tenth of it where the whole of a public backbone is trained on."""

_SEALED_THROUGHOUT = (dp_sgd.NAME, "retraining")


def recipe_of(
    document: object, architecture: ArchitectureSpec, policy: Policy, task: TaskSpec
) -> TrainingRecipe:
    """Return the recipe of a definition; the architecture's defaults complete it."""
    recipe = _recipe_of(document, architecture, policy, task)
    require_measured(recipe, policy)
    return recipe


def _recipe_of(
    document: object, architecture: ArchitectureSpec, policy: Policy, task: TaskSpec
) -> TrainingRecipe:
    if architecture.name == linear_head.NAME:
        return linear_head.recipe_of(document, task, mechanism=policy.mechanism)
    if architecture.name == ridge_head.NAME:
        ridge_head.require_task(architecture, task)
        return ridge_head.recipe_of(document)
    given = TrainingRecipe.fields_of(document)
    if architecture.name == ENSEMBLE and given.get("patience") is not None:
        raise InvalidInputError(
            "recipe: patience lets held-out records decide, and no record may concern all members "
            "of an ensemble: fix the number of epochs, or of trees"
        )
    if architecture.member.name == boosted_trees.NAME:
        boosted_trees.require_task(task)
        return ridge_head.recipe_of(document, boosted_trees.NAME, taken=("patience",))
    recipe = TrainingRecipe(**{**_defaults(architecture, given), **given})
    require_suited(recipe, policy)
    return recipe


def _defaults(architecture: ArchitectureSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that a definition has and ``TrainingRecipe`` has not.

    Features may be of any size, and members of an ensemble see few records: no rate of SGD fits all
    (docs/models.md has what was measured). A recipe that states a rate and no optimiser means SGD.
    """
    found: dict[str, Any] = {"batch_size": 32} if architecture.name == ENSEMBLE else {}
    if given.keys().isdisjoint(_OF_SGD):
        found["optimizer"] = "adamw"
    if {**given, **found}.get("optimizer") == "adamw":
        begins_public = architecture.backbone is not None and not architecture.on_features
        found["learning_rate"] = ADAMW_RATE / 10 if begins_public else ADAMW_RATE
    return found


def require_measured(recipe: TrainingRecipe, policy: Policy) -> None:
    """Raise ``InvalidInputError`` if a policy wants what nothing could decide."""
    if policy.minimum_score is not None and recipe.held_out_fraction == 0:
        raise InvalidInputError(
            "policy: minimum_score needs held-out records, which decide whether a run is "
            "published: set held_out_fraction in the recipe"
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
