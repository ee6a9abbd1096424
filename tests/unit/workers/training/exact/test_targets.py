"""Targets become whole numbers below 2^15, and the head's scores are in the task's own units."""

import numpy as np
import pytest

from app.domain.schema import InputSchema
from app.domain.tasks.built_in import ClassificationSpec, MultiLabelSpec, RegressionSpec
from workers.training.exact import ridge
from workers.training.exact.statistics import LEVELS, Statistics, quantised
from workers.training.exact.targets import Targets

LABELS = Targets(MultiLabelSpec(labels=("a", "b")))
NUMBERS = Targets(RegressionSpec(targets=("y",)), 4.0)


def test_a_class_is_one_and_the_others_nothing():
    targets = Targets(ClassificationSpec(classes=3))
    assert targets.numbers(np.array([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert targets.unit == 1.0


def test_labels_lie_around_zero_and_may_be_in_doubt():
    found = LABELS.numbers(np.array([[0.0, 1.0], [0.5, 0.25]], dtype=np.float32))
    assert found.tolist() == [[-32767, 32767], [0, -16384]]
    assert 32767 * LABELS.unit == 1.0


@pytest.mark.parametrize("value", [4.0, 9.0, 1e38, np.inf])
def test_numbers_beyond_the_range_are_clipped_to_its_end(value):
    found = NUMBERS.numbers(np.array([[value], [-value], [1.0], [np.nan]]))
    assert found[:, 0].tolist() == [LEVELS - 1, 1 - LEVELS, LEVELS // 4, 0]


def test_every_target_is_rounded_by_itself_alone():
    given = np.random.default_rng(1).normal(size=(50, 1)) * 3
    alone = [NUMBERS.numbers(given[row : row + 1])[0, 0] for row in range(50)]
    assert NUMBERS.numbers(given)[:, 0].tolist() == alone
    assert np.abs(np.array(alone) * NUMBERS.unit - np.clip(given[:, 0], -4, 4)).max() <= 4 / LEVELS


def test_the_solution_learns_numbers_in_their_own_units():
    random = np.random.default_rng(2)
    features = random.normal(size=(400, 3))
    truth = features @ [0.5, -1.0, 0.25] + 0.7
    schema = InputSchema(shape=(3,), dtype="float32", offset=0.0, scale=1.0, classes=1)
    sums = Statistics.over(quantised(features, schema, 8.0), NUMBERS.numbers(truth[:, None]))
    found = ridge.solve(sums, regularisation=1e-5)
    scale = LEVELS / 8.0 * NUMBERS.unit
    assert found.weight[0] * scale == pytest.approx([0.5, -1.0, 0.25], abs=2e-3)
    assert found.bias[0] * NUMBERS.unit == pytest.approx(0.7, abs=2e-3)
