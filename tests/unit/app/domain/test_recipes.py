"""Training recipes: what is refused, and what survives JSON."""

import json

import pytest

from app.domain.errors import InvalidInputError
from app.domain.recipes import ParameterGroup, TrainingRecipe, members_of


def test_json_round_trip_and_defaults():
    recipe = TrainingRecipe(
        optimizer="adamw",
        learning_rate=0.001,
        epochs=3,
        schedule="cosine",
        warmup_fraction=0.1,
        micro_batches=4,
        clip_norm=1.0,
        precision="bfloat16",
        groups=(ParameterGroup("*.bias", weight_decay=0.0), ParameterGroup("0.*", 0.1)),
    )
    assert TrainingRecipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert TrainingRecipe.from_json({}) == TrainingRecipe()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("optimizer", "lbfgs"),
        ("optimizer", ["sgd"]),
        ("schedule", "linear"),
        ("warmup_fraction", 1),
        ("warmup_fraction", -0.1),
        ("warmup_fraction", True),
        ("micro_batches", 0),
        ("micro_batches", 129),
        ("micro_batches", 2.0),
        ("clip_norm", 0),
        ("clip_norm", float("inf")),
        ("learning_rate", 10**400),
        ("precision", "float16"),
        ("groups", {}),
        ("groups", ["*.bias"]),
        ("groups", [{"learning_rate": 0.1}]),
        ("groups", [{"parameters": "*.bias"}]),
        ("groups", [{"parameters": "", "learning_rate": 0.1}]),
        ("groups", [{"parameters": "*", "learning_rate": 0}]),
        ("groups", [{"parameters": "*", "weight_decay": -1}]),
        ("groups", [{"parameters": "*", "learning_rate": 0.1, "momentum": 0.5}]),
        ("groups", [{"parameters": "*", "learning_rate": 0.1}] * 65),
        ("learning_rate", 0),
        ("learning_rate", float("nan")),
        ("learning_rate", "0.1"),
        ("momentum", 1),
        ("weight_decay", -1e-9),
        ("epochs", 0),
        ("epochs", 1.5),
        ("epochs", True),
        ("batch_size", 0),
        ("held_out_fraction", 0.95),
        ("held_out_fraction", -0.1),
        ("nesterov", True),
    ],
)
def test_refuses_by_name(field, value):
    with pytest.raises(InvalidInputError, match=field):
        TrainingRecipe.from_json({field: value})


@pytest.mark.parametrize("document", [None, [], "sgd"])
def test_refuses_what_is_no_object(document):
    with pytest.raises(InvalidInputError):
        TrainingRecipe.from_json(document)


def test_a_parameter_belongs_to_the_first_group_that_has_it():
    groups = (ParameterGroup("*.bias", weight_decay=0.0), ParameterGroup("layers.0.*", 0.1))
    names = ["layers.0.weight", "layers.0.bias", "head.weight", "head.bias"]
    assert members_of(groups, names) == [
        ["layers.0.bias", "head.bias"],
        ["layers.0.weight"],
        ["head.weight"],
    ]


@pytest.mark.parametrize("pattern", ["encoder.*", "*.bias"])
def test_a_group_without_parameters_is_refused(pattern):
    groups = (ParameterGroup("*.bias", 0.1), ParameterGroup(pattern, 0.2))
    with pytest.raises(InvalidInputError, match="no trainable parameter"):
        members_of(groups, ["head.weight", "head.bias"])


def test_warm_up_has_a_default_for_each_schedule():
    assert TrainingRecipe().warmup == 0.3
    assert TrainingRecipe(schedule="cosine").warmup == 0
    assert TrainingRecipe(warmup_fraction=0.0).warmup == 0
