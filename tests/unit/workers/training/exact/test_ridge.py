"""The ridge solution, compared with scikit-learn's and with leaving records out."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from app.domain.errors import RunFailedError
from workers.training.exact import ridge
from workers.training.exact.statistics import Statistics, one_hot

RANDOM = np.random.default_rng(5)
FEATURES = np.rint(RANDOM.normal(size=(300, 6)) * [900, 20, 4000, 1, 70, 0] + 50).astype(np.int16)
LABELS = (FEATURES[:, 0] + FEATURES[:, 2] // 3 + RANDOM.normal(size=300) * 800 > 50).astype(int)
TARGETS = one_hot(LABELS, 3)


def sums(rows=slice(None)):
    return Statistics.over(FEATURES[rows], TARGETS[rows])


@pytest.mark.parametrize("regularisation", [1e-4, 0.1, 3.0])
def test_it_is_the_ridge_regression_of_standardised_features(regularisation):
    found = ridge.solve(sums(), regularisation=regularisation)
    varying = FEATURES[:, :5].astype(float)
    scale = varying.std(axis=0)
    expected = Ridge(alpha=regularisation * len(FEATURES)).fit(
        (varying - varying.mean(axis=0)) / scale, TARGETS.astype(float)
    )
    assert found.weight[:, :5] == pytest.approx(expected.coef_ / scale, rel=1e-9, abs=1e-15)
    predicted = FEATURES @ found.weight.T + found.bias
    assert predicted[:4] == pytest.approx(
        expected.predict((varying - varying.mean(axis=0)) / scale)[:4], abs=1e-9
    )


def test_a_constant_feature_has_no_weight():
    assert not ridge.solve(sums(), regularisation=None).weight[:, 5].any()


def test_the_regularisation_is_the_candidate_with_the_least_cross_validation():
    x = FEATURES[:, :5].astype(float)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = TARGETS - TARGETS.mean(axis=0)
    n = len(x)

    def validated(candidate):
        hat = x @ np.linalg.solve(x.T @ x / n + candidate * np.eye(5), x.T / n)
        rest = ((y - hat @ y) ** 2).sum() / n
        return rest / (1 - 1.4 * (1 + np.trace(hat)) / n) ** 2

    chosen = ridge.solve(sums(), regularisation=None).regularisation
    assert chosen == min(ridge.CANDIDATES, key=validated)
    problem = ridge.Problem.of(sums())
    for candidate in ridge.CANDIDATES:
        assert problem.validated(candidate) == pytest.approx(validated(candidate), rel=1e-9)


def test_the_choice_depends_on_the_records_that_are_left():
    few = ridge.solve(sums(slice(0, 8)), regularisation=None).regularisation
    assert few > ridge.solve(sums(), regularisation=None).regularisation


@pytest.mark.parametrize("records", [80, 100, 120])
def test_noise_is_not_fitted_where_some_of_about_as_many_records_as_features_are_twins(records):
    draws, twins = np.random.default_rng(records), slice(records // 5)
    x = draws.normal(size=(records, 100)) * np.linspace(1, 0.1, 100)
    noise = draws.normal(size=records)
    x[-twins.stop :], noise[-twins.stop :] = x[twins], noise[twins]
    y = np.sign(x[:, :2].sum(axis=1) + noise).astype(np.int64)
    mixed = np.rint(3000 * x @ np.linalg.qr(draws.normal(size=(100, 100)))[0]).astype(np.int16)
    found = ridge.solve(Statistics.over(mixed, y[:, None]), regularisation=None)
    assert found.regularisation >= 1


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_handful_of_records_has_a_solution(count):
    found = ridge.solve(sums(slice(0, count)), regularisation=None)
    assert np.isfinite(found.weight).all()
    assert found.bias.shape == (3,)


def test_no_records_have_none():
    with pytest.raises(RunFailedError, match="no record"):
        ridge.solve(Statistics.none(6, 3), regularisation=None)
