"""Figures of predictions whose values are known by hand."""

import numpy as np
import pytest

from workers.tasks import metrics

PROBABILITIES = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]])


@pytest.mark.parametrize(
    ("of", "target"),
    [
        (metrics.of_classes, np.array([0, 1, 0, 0])),
        (metrics.of_labels, np.array([[1, 0], [0, 1], [1, 0], [1, 0]])),
    ],
)
def test_scores_that_are_no_probabilities_have_no_calibration_error(of, target):
    measured = of(PROBABILITIES, target)
    # Right at 0.9, 0.8 and 0.7, wrong at 0.6: each alone in its bin.
    assert measured["calibration_error"] == pytest.approx((0.1 + 0.2 + 0.6 + 0.3) / 4)
    assert measured["accuracy"] == 0.75
    of_scores = of(PROBABILITIES, target, calibrated=False)
    assert of_scores == {k: v for k, v in measured.items() if k != "calibration_error"}
