"""Gaussian differential privacy: from mu to (epsilon, delta) and back, exactly.

mu-GDP says that two worlds are at least as hard to tell apart as N(0, 1) and N(mu, 1)
(Dong, Roth & Su 2022, Gaussian Differential Privacy, Corollary 2.13):

    delta(epsilon) = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)

Every function rounds to the safe side: delta and epsilon up, mu (of a target) down.
"""

import math
from collections.abc import Callable

from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from app.domain.checks import require_delta, require_non_negative, require_positive
from app.domain.errors import CalibrationError

# Relative error of the float64 evaluation of the formulas; results are moved outward by it.
_ROUNDING = 5e-14
_LARGEST_MU = 1e6


def log_delta(*, mu: float, epsilon: float) -> float:
    """Return the natural logarithm of delta(epsilon) for mu-GDP, without outward rounding."""
    upper = -epsilon / mu + mu / 2
    lower = -epsilon / mu - mu / 2
    log_first = float(log_ndtr(upper))
    # log of the ratio of the second term to the first; always below 0 mathematically.
    gap = epsilon + float(log_ndtr(lower)) - log_first
    if gap > -0.1:
        return math.log(_close_difference(mu, epsilon))
    return log_first + math.log1p(-math.exp(gap))


def _close_difference(mu: float, epsilon: float) -> float:
    """Return delta where its two terms nearly cancel (tiny mu), as an integral of positive terms.

    d/dmu delta = phi(-epsilon/mu + mu/2), so delta is its integral from 0 to mu.
    """

    def density(m: float) -> float:
        return math.exp(-0.5 * (m / 2 - epsilon / m) ** 2) / math.sqrt(2 * math.pi)

    total = float(quad(density, 0.0, mu, epsabs=0.0, epsrel=2e-14, limit=200)[0])
    return max(total, math.ulp(0.0))


def delta_of(*, mu: float, epsilon: float) -> float:
    """Return the smallest delta for which mu-GDP gives (epsilon, delta), rounded up.

    Raises:
        ParameterError: mu is not positive, or epsilon is negative.
    """
    mu = require_positive("mu", mu)
    epsilon = require_non_negative("epsilon", epsilon)
    if epsilon == 0:
        return min(1.0, math.erf(mu / (2 * math.sqrt(2))) * (1 + _ROUNDING))
    return min(1.0, math.exp(log_delta(mu=mu, epsilon=epsilon)) * (1 + _ROUNDING))


def epsilon_of(*, mu: float, delta: float) -> float:
    """Return the smallest epsilon for which mu-GDP gives (epsilon, delta), rounded up.

    0 where delta(0) <= delta already.

    Raises:
        ParameterError: mu is not positive, or delta lies outside (0, 1).
        CalibrationError: the search did not converge.
    """
    mu = require_positive("mu", mu)
    delta = require_delta(delta)
    if delta_of(mu=mu, epsilon=0.0) <= delta:
        return 0.0
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        return log_delta(mu=mu, epsilon=epsilon) - target

    # Phi(-epsilon/mu + mu/2) alone is at most exp(-x^2/2) at x = epsilon/mu - mu/2.
    highest = mu * (mu / 2 + math.sqrt(-2 * target)) + 1e-9
    root = _root(excess, 0.0 + math.ulp(0.0), highest)
    return root * (1 + _ROUNDING) + 1e-13


def mu_of(*, epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP gives (epsilon, delta), rounded down.

    Raises:
        ParameterError: epsilon is not positive, or delta lies outside (0, 1).
        CalibrationError: the search did not converge.
    """
    epsilon = require_positive("epsilon", epsilon)
    delta = require_delta(delta)
    target = math.log(delta)

    def excess(log_mu: float) -> float:
        return log_delta(mu=math.exp(log_mu), epsilon=epsilon) - target

    lowest = math.log(epsilon / (math.sqrt(-2 * target) + math.sqrt(2 * epsilon) + 40))
    root = _root(excess, lowest, math.log(_LARGEST_MU))
    return math.exp(root) * (1 - _ROUNDING)


def advantage_of(*, mu: float) -> float:
    """Return the largest true-positive minus false-positive rate of any attacker, 2 Phi(mu/2) - 1.

    Source: Chourasia & Shah 2023, Theorem 4.1, in the exact form that mu-GDP allows.
    """
    return float(2 * ndtr(require_positive("mu", mu) / 2) - 1)


def surviving_information_bits(*, mu: float) -> float:
    """Return mu^2/2 nats in bits: what a release between any two starts can tell of its start."""
    return require_positive("mu", mu) ** 2 / 2 / math.log(2)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    try:
        root, report = brentq(function, low, high, xtol=1e-15, rtol=1e-14, full_output=True)
    except (ValueError, RuntimeError) as error:
        raise CalibrationError("the search for a Gaussian guarantee did not converge") from error
    if not report.converged or not math.isfinite(root):
        raise CalibrationError("the search for a Gaussian guarantee did not converge")
    return float(root)
