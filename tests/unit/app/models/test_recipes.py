"""Recipes that a mechanism has no use for."""

import pytest

from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.policy import Policy
from app.domain.states import FirstRelease
from app.domain.tasks.classification import ClassificationSpec
from app.models.recipes import recipe_of

TASK = ClassificationSpec(classes=10)
OF_BATCHES = [{"clip_norm": 1.0}, {"micro_batches": 2}, {"precision": "bfloat16"}]


@pytest.mark.parametrize("recipe", OF_BATCHES)
@pytest.mark.parametrize("mechanism", ["auto", "gradient_clipping", "dp_sgd"])
def test_dp_sgd_clips_splits_and_rounds_by_rules_of_its_own(mechanism, recipe) -> None:
    (name,) = recipe
    network, policy = ArchitectureSpec("logistic"), Policy(mechanism=mechanism)
    if mechanism == "dp_sgd":
        with pytest.raises(InvalidInputError, match=f"{name} is not for dp_sgd"):
            recipe_of(recipe, network, policy, TASK)
    else:
        assert getattr(recipe_of(recipe, network, policy, TASK), name) == recipe[name]


@pytest.mark.parametrize("mechanism", ["dp_sgd", "retraining"])
def test_patience_is_refused_where_all_training_is_in_the_seal(mechanism) -> None:
    recipe, network = {"patience": 2}, ArchitectureSpec("logistic")
    with pytest.raises(InvalidInputError, match="patience is for training outside of the seal"):
        recipe_of(recipe, network, Policy(mechanism=mechanism), TASK)
    openly = Policy(mechanism="retraining", first_release=FirstRelease.AS_TRAINED)
    assert recipe_of(recipe, network, openly, TASK).patience == 2
    with pytest.raises(InvalidInputError, match="without held-out records"):
        recipe_of(recipe | {"held_out_fraction": 0}, network, Policy(), TASK)


def test_what_comes_after_its_noise_is_free() -> None:
    recipe = {"optimizer": "adamw", "schedule": "cosine", "warmup_fraction": 0.1}
    made = recipe_of(recipe, ArchitectureSpec("logistic"), Policy(mechanism="dp_sgd"), TASK)
    assert made.warmup == 0.1


def test_only_an_ensemble_with_held_out_records_may_merge():
    policy = Policy(mechanism="sharded_retraining", merge_margin=0.01)
    mlp = ArchitectureSpec("mlp", {"hidden": [3]})
    ensemble = ArchitectureSpec("ensemble", members=2, of=mlp)
    assert recipe_of({}, ensemble, policy, TASK).held_out_fraction == 0.1
    with pytest.raises(InvalidInputError, match="needs held-out records"):
        recipe_of({"held_out_fraction": 0}, ensemble, policy, TASK)
    for other in (mlp, ArchitectureSpec("linear_head")):
        with pytest.raises(InvalidInputError, match="merge_margin is for an ensemble"):
            recipe_of({}, other, policy, TASK)
