"""What ensembles cost."""

import pytest

from app.domain.errors import ParameterError
from app.planning.ensembles import costs_of
from app.planning.shape import EnsembleShape, ModelShape

SHAPE = ModelShape(retained=1000, batch_size=10, recipe_epochs=4)


def test_a_person_costs_a_member_and_a_week_together_at_most_all_of_them():
    (cost,) = costs_of(SHAPE, [8], persons_a_week=70)
    training = 4 * 130  # 125 records in batches of 10
    assert cost.one == training
    assert cost.share == 1 / 8
    assert cost.singly == 70 * training
    assert cost.by_day == pytest.approx(7 * 8 * (1 - (7 / 8) ** 10) * training)
    assert cost.by_week == pytest.approx(8 * (1 - (7 / 8) ** 70) * training)
    assert cost.by_week < cost.by_day < cost.singly


def test_one_member_costs_a_whole_training_for_each_run():
    (cost,) = costs_of(SHAPE, [1], persons_a_week=7)
    assert cost.one == cost.by_week == 4000


@pytest.mark.parametrize("members", [0, -1])
def test_an_ensemble_has_members(members):
    with pytest.raises(ParameterError):
        costs_of(SHAPE, [members], persons_a_week=1)


def test_more_members_cannot_be_concerned_than_there_are():
    with pytest.raises(ParameterError, match="from 0 to 4"):
        EnsembleShape(4, concerned=5)
