"""Which tasks a linear and a ridge head learn, and what no task may state."""

from dataclasses import replace

import pytest

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.heads import linear_head, ridge_head
from app.domain.tasks import catalogue
from app.domain.tasks.spec import TaskSpec, WeightColumn
from tests.support.specs import classification, language_model, multi_label, regression

CLASSES = classification(3)
LABELS = multi_label(("a", "b"))
SQUARED = regression(("y",))
HUBER = replace(SQUARED, loss="huber")
HEAVY = WeightColumn(column="w", most=4.0)


def ridge(**options: object) -> ArchitectureSpec:
    return ArchitectureSpec("ridge_head", options)


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        (ridge(), CLASSES),
        (ridge(), LABELS),
        (ridge(target_range=4.0), SQUARED),
    ],
)
def test_sums_are_enough_for(architecture: ArchitectureSpec, task: TaskSpec) -> None:
    ridge_head.require_task(architecture, task)


@pytest.mark.parametrize(
    ("architecture", "task", "reason"),
    [
        (ridge(), SQUARED, "needs target_range"),
        (ridge(target_range=4.0), CLASSES, "for regression only"),
        (ridge(target_range=4.0), LABELS, "for regression only"),
        (ridge(target_range=4.0), HUBER, "regression by the loss huber is not for"),
        (ridge(target_range=4.0), replace(SQUARED, loss="quantile"), "the loss quantile"),
        (ridge(), language_model(9), "language_model is not for"),
        (ridge(), replace(CLASSES, weight=HEAVY), "weight is not for"),
        (ridge(), replace(CLASSES, class_weights=(1, 2, 3)), "class_weights is not for"),
        (ridge(), replace(LABELS, label_smoothing=0.1), "label_smoothing is not for"),
        (ridge(target_range=4.0), replace(SQUARED, weight=HEAVY), "weight is not for"),
    ],
)
def test_sums_are_not_enough_for(
    architecture: ArchitectureSpec, task: TaskSpec, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        ridge_head.require_task(architecture, task)


@pytest.mark.parametrize("target_range", [0, -1, 1e9, "4", True, None, float("nan")])
def test_a_range_of_targets_is_a_number(target_range: object) -> None:
    with pytest.raises(InvalidInputError, match="target_range must be a number"):
        ridge(target_range=target_range)


@pytest.mark.parametrize(
    ("task", "rate"),
    [
        (CLASSES, 1 / 0.51),
        (replace(CLASSES, class_weights=(0, 1, 2), weight=HEAVY), 1 / 4.01),
        (replace(LABELS, class_weights=(2, 1)), 1 / 0.51),
        (replace(HUBER, weight=HEAVY), 1 / 4.01),
        (SQUARED, 1 / 1.01),
    ],
)
def test_the_rate_of_a_linear_head_follows_from_the_curvature_of_its_loss(
    task: TaskSpec, rate: float
) -> None:
    recipe = linear_head.recipe_of({}, task, mechanism="tracked_release")
    assert recipe.learning_rate == pytest.approx(rate)
    given = {"learning_rate": 1.01 * rate}
    with pytest.raises(InvalidInputError, match="learning_rate of at most"):
        linear_head.recipe_of(given, task, mechanism="tracked_release")


@pytest.mark.parametrize("task", [replace(SQUARED, loss="quantile"), language_model(9)])
def test_a_loss_without_a_bounded_curvature_has_no_linear_head(task: TaskSpec) -> None:
    with pytest.raises(InvalidInputError, match="counts on a convex loss"):
        linear_head.recipe_of({}, task, mechanism="gradient_clipping")


HUGE = (1e308, 1e-308, float("nan"), float("inf"), -1, 0, True, "1", None, 10**400)


@pytest.mark.parametrize("number", HUGE)
def test_no_factor_of_a_loss_is_beyond_what_can_be_counted(number: object) -> None:
    """A slope or curvature of 0, infinity or NaN would make a guarantee of nothing."""
    inputs = {"inputs": [{"name": "x", "kind": "number"}]}
    labels = {"name": "multi_label", "target": {"columns": ["a"]}, **inputs}
    numbers = {"name": "regression", "target": {"columns": ["y"]}, **inputs}
    for document in (
        numbers | {"loss": "huber", "threshold": number},
        numbers | {"weight": {"column": "w", "most": number}},
        labels | {"class_weights": [number]},
    ):
        with pytest.raises(InvalidInputError, match="task: "):
            catalogue.from_json(document)


def test_ten_thousand_labels_have_bounds() -> None:
    many = multi_label(tuple(map(str, range(10_000))))
    assert many.bounds.lipschitz == 100.0
    with pytest.raises(InvalidInputError, match="10,000 different columns"):
        multi_label(tuple(map(str, range(10_001))))
