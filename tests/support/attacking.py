"""What an attacker who sees many releases of two worlds proves about any guarantee."""

import numpy as np
from scipy.stats import beta, norm

FAILURE = 1e-6
"""The probability with which each bound may fail."""


def upper(hits, draws):
    """The Clopper-Pearson upper limit of a probability."""
    return 1.0 if hits == draws else float(beta.ppf(1 - FAILURE / 2, hits + 1, draws - hits))


def rates(first, second):
    """Upper limits of both error rates of the best threshold, chosen on held-out draws."""
    half = len(first) // 2
    candidates = np.quantile(np.concatenate([first[:half], second[:half]]), np.linspace(0, 1, 201))
    errors = [np.mean(first[:half] <= t) + np.mean(second[:half] > t) for t in candidates]
    threshold = candidates[int(np.argmin(errors))]
    missed = upper(int(np.sum(first[half:] <= threshold)), len(first) - half)
    false = upper(int(np.sum(second[half:] > threshold)), len(second) - half)
    return missed, false


def mu_lower_bound(first, second):
    """A lower bound on the mu of the pair of worlds, whatever they are."""
    missed, false = rates(first, second)
    return float(norm.ppf(1 - false) - norm.ppf(missed))
