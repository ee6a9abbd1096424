"""Training recipes: what is refused, and what survives JSON."""

import json

import pytest

from app.domain.errors import InvalidInputError
from app.domain.recipe import TrainingRecipe


def test_json_round_trip_and_defaults():
    recipe = TrainingRecipe(optimizer="adamw", learning_rate=0.001, epochs=3)
    assert TrainingRecipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert TrainingRecipe.from_json({}) == TrainingRecipe()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("optimizer", "lbfgs"),
        ("optimizer", ["sgd"]),
        ("schedule", "cosine"),
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
