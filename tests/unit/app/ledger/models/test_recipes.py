"""Recipes that a mechanism has no use for."""

from dataclasses import replace

import pytest

from app.domain.architectures import ArchitectureSpec, BackboneUse
from app.domain.errors import InvalidInputError
from app.domain.policy import Policy
from app.domain.states import FirstRelease
from app.ledger.models.recipes import recipe_of
from tests.support.specs import classification

TASK = classification(10)
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


MLP = ArchitectureSpec("mlp", {"hidden": [8]})
SEVERAL = ArchitectureSpec("ensemble", members=4, of=MLP)
ON_FEATURES = replace(MLP, backbone=BackboneUse("public"))
TRAINED_ON = replace(MLP, backbone=BackboneUse("public", frozen=False))


@pytest.mark.parametrize(
    ("network", "given", "optimizer", "rate", "batch"),
    [
        (MLP, {}, "adamw", 0.01, 128),
        (MLP, {"learning_rate": 0.3}, "sgd", 0.3, 128),
        (MLP, {"optimizer": "sgd"}, "sgd", 0.1, 128),
        (MLP, {"optimizer": "adamw"}, "adamw", 0.01, 128),
        (SEVERAL, {}, "adamw", 0.01, 32),
        (SEVERAL, {"batch_size": 8}, "adamw", 0.01, 8),
        (SEVERAL, {"learning_rate": 0.5}, "sgd", 0.5, 32),
        (SEVERAL, {"momentum": 0.5}, "sgd", 0.1, 32),
        (SEVERAL, {"optimizer": "sgd"}, "sgd", 0.1, 32),
        (ON_FEATURES, {}, "adamw", 0.01, 128),
        (TRAINED_ON, {}, "adamw", 0.001, 128),
        (TRAINED_ON, {"optimizer": "adamw", "learning_rate": 0.5}, "adamw", 0.5, 128),
        (replace(SEVERAL, backbone=BackboneUse("public")), {}, "adamw", 0.01, 32),
        (ArchitectureSpec("linear_head", backbone=BackboneUse("public")), {}, "sgd", 2.0, 128),
    ],
)
def test_defaults_suit_the_network(network, given, optimizer, rate, batch) -> None:
    policy = Policy(mechanism="auto")
    made = recipe_of(given, network, policy, TASK)
    assert (made.optimizer, made.batch_size) == (optimizer, batch)
    assert made.learning_rate == pytest.approx(rate, rel=0.01)


def test_a_minimum_needs_held_out_records() -> None:
    policy = Policy(minimum_score=0.5)
    assert recipe_of({}, MLP, policy, TASK).held_out_fraction == 0.1
    for network in (MLP, SEVERAL, ArchitectureSpec("linear_head"), ArchitectureSpec("ridge_head")):
        with pytest.raises(InvalidInputError, match="minimum_score needs held-out records"):
            recipe_of({"held_out_fraction": 0}, network, policy, TASK)


@pytest.mark.parametrize("name", ["linear_head", "ridge_head", "mlp"])
def test_a_recipe_as_it_is_shown_may_be_sent_again(name: str) -> None:
    network = MLP if name == "mlp" else ArchitectureSpec(name)
    shown = recipe_of({"held_out_fraction": 0.2}, network, Policy(), TASK)
    assert recipe_of(shown.to_json(), network, Policy(), TASK) == shown


@pytest.mark.parametrize("other", [{"epochs": 2}, {"momentum": 0.5}, {"optimizer": "adamw"}])
def test_a_ridge_head_takes_nothing_but_the_split(other) -> None:
    (name,) = other
    with pytest.raises(InvalidInputError, match=f"takes no {name!r}"):
        recipe_of(other, ArchitectureSpec("ridge_head"), Policy(), TASK)
