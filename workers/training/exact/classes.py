"""Classifiers from class means: nearest means, and linear discriminants, of the same sums.

With the mean m_c of each class, the share p_c of its records and the covariance S within classes,
which all follow from the sums, the scores of a record x are, up to what is equal for all classes,
its logarithmic densities:

    nearest means   (m_c x - |m_c|^2 / 2) / s^2                           s^2 = tr S / size
    discriminant    m_c S'^-1 x - m_c S'^-1 m_c / 2 + log p_c             S' = S + l diag(v)

where v are the variances of the features. The regularisation l is fixed, or the one that
cross-validation chooses for the ridge solution of the same sums. A class without records is never
the largest. Everything is computed anew from the sums each time.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve

from workers.training.exact.arithmetic import repeatable
from workers.training.exact.ridge import (
    Floats,
    Problem,
    Solution,
    factored,
    finite,
    require_records,
)
from workers.training.exact.statistics import LEVELS, Statistics


def nearest_means(statistics: Statistics) -> Solution:
    """Return the classifier whose largest score is that of the nearest class mean.

    Raises:
        RunFailedError: there are no records.
    """
    require_records(statistics)
    with repeatable():
        means = _means(statistics)
        within = _within(statistics, np.diag(statistics.products), means**2)
        spread = float(within.mean())
        weight = means / (spread if spread > 0 else 1.0)
        bias = -(weight * means).sum(axis=1) / 2
        return finite(weight, _without(statistics, weight, bias), None)


def discriminant(statistics: Statistics, *, regularisation: float | None) -> Solution:
    """Return the linear discriminant of classes with one covariance.

    Args:
        statistics: of the retained records; targets are 1 for a record's class, else 0.
        regularisation: above 0; None chooses it.

    Raises:
        RunFailedError: there are no records, or the solution is not finite.
    """
    require_records(statistics)
    with repeatable():
        problem = Problem.of(statistics)
        if regularisation is None:
            regularisation = problem.chosen()
        # In units of the features' standard deviations, around their means.
        means = (_means(statistics) - problem.mean) * problem.inverse_scale
        shares = statistics.targets / int(statistics.records)
        covariance = problem.correlations - (means.T * shares) @ means
        factor = factored(covariance, regularisation, "the covariance")
        scaled = cho_solve(factor, means.T, check_finite=False).T
        weight = scaled * problem.inverse_scale
        bias = np.log(np.maximum(shares, 1e-300)) - (scaled * means).sum(axis=1) / 2
        bias -= weight @ problem.mean
        return finite(weight, _without(statistics, weight, bias), regularisation)


def _means(statistics: Statistics) -> Floats:
    """Return each class's mean, [classes, size]; 0 for a class without records."""
    counts = np.maximum(statistics.targets, 1)
    means: Floats = statistics.crossed.T / counts[:, None]
    return means


def _within(statistics: Statistics, squares: NDArray[np.int64], squared_means: Floats) -> Floats:
    """Return each feature's variance within classes, at least 0."""
    n = int(statistics.records)
    within: Floats = squares / n - (statistics.targets / n) @ squared_means
    return np.maximum(within, 0.0)


def _without(statistics: Statistics, weight: Floats, bias: Floats) -> Floats:
    """Return the bias, lowered for classes without records below all scores that others reach."""
    present = statistics.targets > 0
    reached = np.abs(weight[present]).sum(axis=1) * LEVELS + np.abs(bias[present])
    weight[~present] = 0.0
    return np.where(present, bias, -1.0 - reached.max())
