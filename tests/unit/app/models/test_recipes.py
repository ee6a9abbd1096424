"""Recipes that a mechanism has no use for."""

import pytest

from app.domain.architecture import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.policy import Policy
from app.models.recipes import recipe_of

OF_BATCHES = [{"clip_norm": 1.0}, {"micro_batches": 2}, {"precision": "bfloat16"}]


@pytest.mark.parametrize("recipe", OF_BATCHES)
@pytest.mark.parametrize("mechanism", ["auto", "gradient_clipping", "dp_sgd"])
def test_dp_sgd_clips_splits_and_rounds_by_rules_of_its_own(mechanism, recipe) -> None:
    (name,) = recipe
    network, policy = ArchitectureSpec("logistic"), Policy(mechanism=mechanism)
    if mechanism == "dp_sgd":
        with pytest.raises(InvalidInputError, match=f"{name} is not for dp_sgd"):
            recipe_of(recipe, network, policy, classes=10)
    else:
        assert getattr(recipe_of(recipe, network, policy, classes=10), name) == recipe[name]


def test_what_comes_after_its_noise_is_free() -> None:
    recipe = {"optimizer": "adamw", "schedule": "cosine", "warmup_fraction": 0.1}
    made = recipe_of(recipe, ArchitectureSpec("logistic"), Policy(mechanism="dp_sgd"), classes=10)
    assert made.warmup == 0.1
