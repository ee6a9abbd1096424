"""What a linear head's recipe leaves out."""

import pytest

from app.domain.errors import InvalidInputError
from app.domain.heads.linear_head import recipe_of
from tests.support.specs import classification

TEN, TWO = (classification(classes) for classes in (10, 2))


@pytest.mark.parametrize(
    ("mechanism", "decay"),
    [
        ("auto", 1e-4),
        ("exact_training", 1e-4),
        ("retraining", 1e-4),
        ("tracked_release", 0.01),
        ("projected_noisy_sgd", 0.01),
        ("gradient_clipping", 0.01),
        ("dp_sgd", 0.01),
    ],
)
def test_the_decay_depends_on_the_mechanism_and_the_rate_on_the_decay(
    mechanism: str, decay: float
) -> None:
    recipe = recipe_of({}, TEN, mechanism=mechanism)
    assert recipe.weight_decay == decay
    assert recipe.learning_rate == 1 / (0.5 + decay)


def test_what_is_given_counts_under_every_mechanism() -> None:
    for mechanism in ("auto", "tracked_release"):
        assert recipe_of({"weight_decay": 0.003}, TWO, mechanism=mechanism).weight_decay == 0.003
        with pytest.raises(InvalidInputError, match="above 0"):
            recipe_of({"weight_decay": 0.0}, TWO, mechanism=mechanism)


@pytest.mark.parametrize(
    "other",
    [
        {"optimizer": "adamw"},
        {"momentum": 0.9},
        {"schedule": "cosine"},
        {"warmup_fraction": 0.1},
        {"clip_norm": 1.0},
        {"micro_batches": 2},
        {"precision": "bfloat16"},
        {"groups": [{"parameters": "*", "learning_rate": 0.1}]},
    ],
)
def test_what_a_tracked_descent_has_no_numbers_for_is_refused(other) -> None:
    (name,) = other
    with pytest.raises(InvalidInputError, match=f"plain descent.*{name}"):
        recipe_of(other, TEN, mechanism="tracked_release")
