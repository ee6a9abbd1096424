"""What ensembles cost."""

from dataclasses import replace

import pytest

from app.domain.errors import ParameterError
from app.planning.ensembles import costs_of, with_measured
from app.planning.shape import EnsembleShape, ModelShape, TreesShape

SHAPE = ModelShape(retained=1000, batch_size=10, recipe_epochs=4)


def test_a_person_costs_a_member_and_a_week_together_at_most_all_of_them():
    (cost,) = costs_of(SHAPE, [8], persons_a_week=70)
    training = 4 * 130  # 125 records in batches of 10
    assert cost.one == training
    assert cost.anew == 8 * cost.singly == 8 * 70 * training
    assert cost.out_by_night == pytest.approx(8 * (1 - (7 / 8) ** 10))
    assert cost.out_by_week == pytest.approx(8 * (1 - (7 / 8) ** 70))
    assert cost.nightly == pytest.approx(7 * cost.out_by_night * training)
    assert cost.weekly == pytest.approx(cost.out_by_week * training)
    assert cost.weekly < cost.nightly < cost.singly


def test_a_member_of_trees_costs_a_gradient_for_each_tree_and_record():
    trees = TreesShape(trees=7, leaves=4, depth=2, smallest_leaf=1, shrinkage=0.1, rows=3)
    (cost,) = costs_of(replace(SHAPE, trees=trees), [8], persons_a_week=1)
    assert cost.one == 7 * 3 * 125


def test_one_member_costs_a_whole_training_for_each_run():
    (cost,) = costs_of(SHAPE, [1], persons_a_week=7)
    assert cost.one == cost.weekly == 4000


@pytest.mark.parametrize("members", [0, -1])
def test_an_ensemble_has_members(members):
    with pytest.raises(ParameterError):
        costs_of(SHAPE, [members], persons_a_week=1)


def test_more_members_cannot_be_concerned_than_there_are():
    with pytest.raises(ParameterError, match="from 0 to 4"):
        EnsembleShape(4, concerned=5)


def shown(name, members, *, certified=True, **more):
    """Return a model as the API shows it."""
    network = {"name": "mlp", "options": {"hidden": [4]}}
    ensemble = {"name": "ensemble", "options": {}, "members": members, "of": network}
    evaluation = {"headline": "accuracy", "metrics": {"accuracy": members / 100}}
    return {
        "name": name,
        "dataset": "people",
        "task": {"name": "classification"},
        "recipe": {"epochs": 4},
        "architecture": network if members == 1 else ensemble,
        "certified": {"size_bytes": 1000 * members, "evaluation": evaluation}
        if certified
        else None,
    } | more


def test_each_size_stands_beside_what_a_model_of_its_kind_has_measured():
    models = [
        shown("single", 1),
        shown("other eight", 8),
        shown("unfinished", 16, certified=False),
        shown("other recipe", 4, recipe={"epochs": 5}),
        shown("on a backbone", 4, architecture=shown("", 4)["architecture"] | {"backbone": {}}),
    ]
    costs = costs_of(SHAPE, [1, 4, 8, 16], persons_a_week=1)
    found = with_measured(costs, shown("eight", 8), models)
    assert [(each.model, each.score) for each in found] == [
        ("single", 0.01),
        (None, None),
        ("eight", 0.08),
        (None, None),
    ]
    assert [each.size_bytes for each in found] == [1000, 4000, 8000, 16000]
    assert [each.one for each in found] == [each.one for each in costs]


def test_before_any_release_nothing_is_known_of_accuracy_and_storage():
    costs = costs_of(SHAPE, [8], persons_a_week=1)
    assert with_measured(costs, shown("eight", 8, certified=False), []) == costs
