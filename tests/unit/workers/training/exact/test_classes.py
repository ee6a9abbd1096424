"""Classifiers from class means, compared with scikit-learn's and with leaving records out."""

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

from app.domain.errors import RunFailedError
from workers.training.exact import classes, ridge
from workers.training.exact.statistics import LEVELS, Statistics, one_hot

RANDOM = np.random.default_rng(5)
LABELS = RANDOM.choice(3, size=400, p=[0.2, 0.3, 0.5])
CENTRES = RANDOM.normal(size=(3, 6)) * [900, 20, 4000, 1, 70, 0]
NOISE = RANDOM.normal(size=(400, 6)) @ RANDOM.normal(size=(6, 6))
FEATURES = np.rint((CENTRES[LABELS] + NOISE * [700, 30, 2000, 4, 90, 0]).clip(-32767, 32767))
FEATURES = FEATURES.astype(np.int16)


def sums(rows=slice(None), outputs=3):
    return Statistics.over(FEATURES[rows], one_hot(LABELS[rows], outputs))


def scores(solution, features=FEATURES):
    return features @ solution.weight.T + solution.bias


def test_the_nearest_mean_is_that_of_scikit_learn():
    expected = NearestCentroid().fit(FEATURES.astype(float), LABELS).predict(FEATURES.astype(float))
    found = classes.nearest_means(sums())
    assert (scores(found).argmax(axis=1) == expected).all()
    assert found.regularisation is None


def test_the_discriminant_is_that_of_scikit_learn():
    varying = FEATURES[:, :5].astype(float)
    varying = (varying - varying.mean(axis=0)) / varying.std(axis=0)
    model = LinearDiscriminantAnalysis(solver="lsqr").fit(varying, LABELS)
    expected = model.decision_function(varying)
    found = scores(classes.discriminant(sums(), regularisation=1e-9))
    np.testing.assert_allclose(
        found - found.mean(axis=1, keepdims=True),
        expected - expected.mean(axis=1, keepdims=True),
        rtol=1e-5,
        atol=1e-5,
    )


def test_the_discriminants_regularisation_is_that_of_the_ridge_solution():
    chosen = ridge.solve(sums(), regularisation=None).regularisation
    assert classes.discriminant(sums(), regularisation=None).regularisation == chosen


@pytest.mark.parametrize("make", [classes.nearest_means, classes.discriminant])
def test_subtracted_records_leave_no_trace(make):
    more = {} if make is classes.nearest_means else {"regularisation": None}
    rest = sums()
    rest.subtract(sums(slice(0, 40)))
    found, expected = make(rest, **more), make(sums(slice(40, None)), **more)
    assert found.weight.tobytes() == expected.weight.tobytes()
    assert found.bias.tobytes() == expected.bias.tobytes()


@pytest.mark.parametrize("rows", [slice(0, 1), slice(0, 2), slice(0, 400)])
def test_a_class_without_records_is_never_predicted(rows):
    far = np.concatenate([FEATURES, -FEATURES, np.full((1, 6), LEVELS - 1, dtype=np.int16)])
    empty = [c for c in range(5) if not (LABELS[rows] == c).any()]
    for found in (
        classes.nearest_means(sums(rows, outputs=5)),
        classes.discriminant(sums(rows, outputs=5), regularisation=None),
    ):
        assert np.isfinite(found.weight).all()
        assert not np.isin(scores(found, far.astype(float)).argmax(axis=1), empty).any()


def test_no_records_have_neither():
    with pytest.raises(RunFailedError, match="no record"):
        classes.nearest_means(Statistics.none(6, 3))
    with pytest.raises(RunFailedError, match="no record"):
        classes.discriminant(Statistics.none(6, 3), regularisation=None)
