"""What one answer for all records scores."""

import numpy as np
import pytest
import torch

from tests.support.specs import classification, language_model, multi_label, regression
from workers.training.tasks.catalogue import task_of
from workers.training.tasks.task import INPUTS, TARGET

NUMBERS = np.array([[0.0], [0.0], [0.0], [8.0]])


@pytest.mark.parametrize(
    ("spec", "target", "baseline"),
    [
        (classification(3), np.array([2, 2, 1, 0, 2]), 0.6),
        # Present in half of the records, in all, and in none.
        (multi_label(("a", "b", "c")), np.array([[1, 1, 0], [0, 1, 0]]), 5 / 9),
        (regression(("y",)), NUMBERS, 3.0),
        (regression(("y",), offset=5, scale=2), NUMBERS, 1.5),
        (regression(("y",), loss="quantile", quantile=0.9), NUMBERS, 0.6),
    ],
)
def test_it_is_that_of_the_answer_that_suits_them_best(spec, target, baseline) -> None:
    task = task_of(spec)
    assert task.baseline({TARGET: target}) == pytest.approx(baseline)
    assert task.higher_is_better == (spec.name != "regression")


def test_a_text_has_that_of_its_tokens_frequencies() -> None:
    task = task_of(language_model(4, padding=0))
    texts = torch.tensor([[3, 1, 1, 2], [3, 1, 0, 0]])

    truth = task.truth({INPUTS: texts, TARGET: torch.zeros(2)})
    assert truth["counts"].tolist() == [[0, 3, 1, 0]]
    # Each token once more: (3 + 1) / 8 and (1 + 1) / 8.
    several = {"counts": np.concatenate([truth["counts"].numpy()] * 2)}
    expected = np.exp(-(6 * np.log(7 / 12) + 2 * np.log(3 / 12)) / 8)
    assert task.baseline(several) == pytest.approx(expected)
    assert task.baseline({"counts": np.zeros((1, 4))}) is None
    assert not task.higher_is_better


def test_a_quantile_is_judged_by_its_own_loss() -> None:
    task = task_of(regression(("y",), loss="quantile", quantile=0.9))
    found = task.metrics({"numbers": np.full((4, 1), 4.0)}, {TARGET: NUMBERS})
    assert task.headline == "quantile_loss"
    assert found["quantile_loss"] == pytest.approx(1.2)
