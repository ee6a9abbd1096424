"""A lineage begins with its recipe, and goes on as it began or not at all."""

from dataclasses import replace

import pytest

from app.accounting.histories.history import History, Steps
from app.domain.errors import PlanError
from app.planning.lineage import lineage_of, new_lineage
from app.planning.shape import ConvexShape, ModelShape
from app.planning.tracking import Tracking

HEAD = ConvexShape(lipschitz=1.5, smoothness=0.5, weight_decay=0.01, learning_rate=1.2)
NEW = ModelShape(retained=100, batch_size=32, recipe_epochs=2.5, dimension=30, convex=HEAD)


def begun(*, noise_std: float = 0.0, **options: object) -> ModelShape:
    """Return a model that was trained as ``new_lineage`` says, with one record to forget."""
    lineage = new_lineage(NEW, **options)
    history = lineage.trained(noise_std=noise_std).after_release(noise_std=0.1)
    tracking = Tracking(
        "tracked_release", 0, settings=lineage.settings, history=history.after_request({0: 1})
    )
    return replace(NEW, earlier_releases=1, retained=99, records=100, tracking=tracking)


def test_a_new_lineage_takes_its_recipes_steps_over_whole_batches() -> None:
    lineage = lineage_of(NEW)
    recipe = lineage.history.recipe
    assert (recipe.batch_size, recipe.batches) == (32, 4)
    assert (recipe.learning_rate, recipe.lipschitz, recipe.radius) == (1.2, 1.5, None)
    assert recipe.dimension == 30
    assert (lineage.training_steps, lineage.is_new) == (10, True)
    assert lineage.history == History(recipe)
    assert "radius" not in lineage.settings


@pytest.mark.parametrize("noise_std", [0.0, 0.25])
def test_training_is_ahead_with_the_noise_that_it_is_told(noise_std: float) -> None:
    assert lineage_of(NEW).trained(noise_std=noise_std).events == (Steps(10, noise_std),)


def test_a_batch_is_no_larger_than_the_data() -> None:
    recipe = new_lineage(replace(NEW, batch_size=1000)).history.recipe
    assert (recipe.batch_size, recipe.batches) == (100, 1)


def test_a_lineage_on_the_whole_data_takes_a_step_an_epoch() -> None:
    lineage = new_lineage(NEW, full_batch=True, learning_rate=0.7, radius=3.0)
    recipe = lineage.history.recipe
    assert (recipe.batch_size, recipe.batches, lineage.training_steps) == (100, 1, 2)
    assert (recipe.learning_rate, recipe.radius) == (0.7, 3.0)
    assert (lineage.settings["learning_rate"], lineage.settings["radius"]) == (0.7, 3.0)


def test_a_lineage_goes_on_with_what_it_began_with_whatever_left_since() -> None:
    shape = begun(radius=3.0)
    later = replace(shape, batch_size=7, recipe_epochs=90, retained=50)
    for options in ({}, {"radius": 3.0}):
        lineage = lineage_of(later, **options)
        assert lineage.history == shape.tracking.history
        assert (lineage.training_steps, lineage.is_new) == (0, False)


@pytest.mark.parametrize("noise_std", [0.0, 0.25])
def test_what_is_ahead_never_speaks_of_the_past(noise_std: float) -> None:
    shape = begun(noise_std=noise_std)
    assert lineage_of(shape).trained(noise_std=9.0) == shape.tracking.history


@pytest.mark.parametrize(
    ("shape", "options", "reason"),
    [
        (replace(NEW, convex=None), {}, "needs a linear_head"),
        (begun(), {"full_batch": True}, "in batches"),
        (begun(), {"learning_rate": 0.7}, "another learning rate"),
        (begun(), {"radius": 3.0}, "another radius"),
        (begun(radius=3.0), {"radius": 4.0}, "another radius"),
        (replace(begun(), tracking=Tracking("dp_sgd", 0)), {}, "needs a linear_head"),
        (replace(begun(), tracking=None), {}, "needs a linear_head"),
        (replace(NEW, trained_here=False), {}, "needs a linear_head"),
    ],
    ids=["network", "batches", "rate", "ball", "other ball", "counted else", "unknown", "upload"],
)
def test_a_lineage_that_cannot_go_on_this_way_is_refused(
    shape: ModelShape, options: dict, reason: str
) -> None:
    with pytest.raises(PlanError, match=reason):
        lineage_of(shape, **options)


def test_a_whole_data_lineage_goes_on_on_the_whole_data() -> None:
    shape = begun(full_batch=True, learning_rate=0.7)
    lineage = lineage_of(shape, full_batch=True, learning_rate=0.7)
    assert lineage.history == shape.tracking.history
