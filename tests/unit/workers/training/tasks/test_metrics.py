"""Figures of predictions whose values are known by hand, or from scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, r2_score, roc_auc_score

from workers.training.tasks.built_in import (
    metrics_of_classes,
    metrics_of_labels,
    metrics_of_numbers,
)

PROBABILITIES = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]])


@pytest.mark.parametrize(
    ("of", "target"),
    [
        (metrics_of_classes, np.array([0, 1, 0, 0])),
        (metrics_of_labels, np.array([[1, 0], [0, 1], [1, 0], [1, 0]])),
    ],
)
def test_scores_that_are_no_probabilities_have_no_calibration_error(of, target):
    measured = of(PROBABILITIES, target)
    # Right at 0.9, 0.8 and 0.7, wrong at 0.6: each alone in its bin.
    assert measured["calibration_error"] == pytest.approx((0.1 + 0.2 + 0.6 + 0.3) / 4)
    assert measured["accuracy"] == 0.75
    of_scores = of(PROBABILITIES, target, calibrated=False)
    assert of_scores == {k: v for k, v in measured.items() if k != "calibration_error"}


@pytest.mark.parametrize("classes", [2, 6])
def test_figures_of_classes_are_scikit_learns(classes):
    generator = np.random.default_rng(classes)
    # Of six classes, the last is only predicted, one before it only true, one neither.
    target = generator.integers(4 if classes == 6 else 2, size=80)
    probabilities = generator.dirichlet(np.ones(classes), size=80).round(1)
    if classes == 6:
        probabilities[:, [3, 4]] = 0
    chosen = probabilities.argmax(axis=1)
    measured = metrics_of_classes(probabilities, target)
    assert measured["f1"] == pytest.approx(f1_score(target, chosen, average="macro"))
    if classes == 2:
        expected = roc_auc_score(target, probabilities[:, 1])
        assert measured["auc"] == pytest.approx(expected)
    assert ("auc" in measured) == (classes == 2)


def test_figures_of_labels_are_scikit_learns():
    generator = np.random.default_rng(1)
    target = generator.integers(2, size=(50, 4))
    probabilities = generator.random((50, 4)).round(1)
    target[:, 2] = probabilities[:, 2] = 0  # never there, never said
    target[:, 3] = 1
    measured = metrics_of_labels(probabilities, target)
    expected = f1_score(target, probabilities > 0.5, average="macro", zero_division=0)
    assert measured["f1"] == pytest.approx(expected)
    areas = [roc_auc_score(target[:, k], probabilities[:, k]) for k in (0, 1)]
    assert measured["auc"] == pytest.approx(np.mean(areas))


def test_the_share_of_variance_explained_is_scikit_learns():
    generator = np.random.default_rng(2)
    target = generator.normal(size=(30, 3)) * [1, 10, 100]
    predicted = target + generator.normal(size=(30, 3)) * [0.1, 20, 3]
    measured = metrics_of_numbers(predicted, target)
    assert measured["r2"] == pytest.approx(r2_score(target, predicted))
    target[:, 1] = 4.0
    assert "r2" not in metrics_of_numbers(predicted, target)
