"""Gaussian differential privacy: from mu to (epsilon, delta) and back, exactly.

mu-GDP says that two worlds are at least as hard to tell apart as N(0, 1) and N(mu, 1)
(Dong, Roth & Su 2022, Gaussian Differential Privacy, Corollary 2.13):

    delta(epsilon) = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)

Every function rounds to the safe side: delta and epsilon up, mu (of a target) down. Searches only
propose a number; it is returned once ``delta_of``, rounded up, confirms it.
"""

import math
from functools import lru_cache

from app.accounting.numerics import confirmed, erfcx, integral, root_between
from app.domain.checks import require_delta, require_non_negative, require_positive
from app.domain.errors import CalibrationError

# Relative error of the float64 evaluation of delta, checked against 60-digit arithmetic; the
# second part grows with the exponent, and both with a mu above 100. Results are moved outward by
# their sum.
_ROUNDING = 2e-13
_ROUNDING_PER_NAT = 5e-15
_LOWEST_LOG_MU = -700.0
_LARGEST_MU = 1e6
_SMALLEST_LOG_DELTA = -700.0
_LOG_HALF = math.log(0.5)
_ROOT_HALF = math.sqrt(0.5)


def log_delta(*, mu: float, epsilon: float) -> float:
    """Return log delta(epsilon) of mu-GDP, not rounded outward; below 1e-300 an upper bound."""
    far = epsilon / mu
    x = far - mu / 2
    y = far + mu / 2
    if x > 1e3:
        # delta <= Phi(-x) <= exp(-x^2/2): an upper bound, and far below any float64.
        return -x * x / 2
    # exp(epsilon) phi(y) = phi(x), so both terms share the factor exp(-x^2/2).
    second = erfcx(y * _ROOT_HALF)
    if x < 0:
        first = math.erfc(x * _ROOT_HALF) / 2
        second *= math.exp(-x * x / 2) / 2
        if second > 0.9 * first:
            return _log_close_difference(mu, epsilon)
        return math.log(first - second)
    first = erfcx(x * _ROOT_HALF)
    if second > 0.9 * first:
        return _log_close_difference(mu, epsilon)
    return _LOG_HALF - x * x / 2 + math.log(first - second)


@lru_cache(maxsize=8192)
def _log_close_difference(mu: float, epsilon: float) -> float:
    """Return log delta where its two terms nearly cancel (tiny mu), from a positive integral.

    d/dmu delta = phi(-epsilon/mu + mu/2), so delta is its integral from 0 to mu; taken over the
    logarithm of the share of mu, where it is smooth. The integrand's value at mu is taken out so
    that nothing underflows.
    """
    if epsilon == 0:
        return math.log(math.erf(mu / (2 * math.sqrt(2))))
    end = epsilon / mu - mu / 2
    shift = max(0.0, end) ** 2 / 2

    def density(log_share: float) -> float:
        m = math.exp(log_share) * mu
        return math.exp(shift - 0.5 * (m / 2 - epsilon / m) ** 2 + log_share)

    # Below this the integrand is under exp(-60) of its value at mu.
    lowest = epsilon / mu / (math.sqrt(2 * shift + 120.0) + mu)
    start = max(math.log(lowest), -60.0)
    total, doubt = integral(density, min(start, -1e-3), 0.0)
    if doubt > 1e-13 * total:
        total += doubt
    if not 0 < total < math.inf:
        raise CalibrationError("a Gaussian guarantee is too small to evaluate")
    return math.log(total) + math.log(mu) - shift - 0.5 * math.log(2 * math.pi)


def rounded_log_delta(*, mu: float, epsilon: float) -> float:
    """Return an upper bound on log delta(epsilon) for mu-GDP, at least -700 (delta 1e-304)."""
    value = log_delta(mu=mu, epsilon=epsilon)
    if value < _SMALLEST_LOG_DELTA:
        return _SMALLEST_LOG_DELTA
    rounding = (_ROUNDING + _ROUNDING_PER_NAT * abs(value)) * max(1.0, mu / 100)
    return min(0.0, value + rounding)


def delta_of(*, mu: float, epsilon: float) -> float:
    """Return the smallest delta for which mu-GDP gives (epsilon, delta), rounded up."""
    mu = require_positive("mu", mu)
    epsilon = require_non_negative("epsilon", epsilon)
    if epsilon == 0:
        return min(1.0, math.erf(mu / (2 * math.sqrt(2))) * (1 + _ROUNDING) + 1e-305)
    return min(1.0, math.exp(rounded_log_delta(mu=mu, epsilon=epsilon)))


def epsilon_of(*, mu: float, delta: float) -> float:
    """Return the smallest epsilon for which mu-GDP gives (epsilon, delta), 0 or rounded up."""
    mu = require_positive("mu", mu)
    delta = require_delta(delta)
    if delta_of(mu=mu, epsilon=0.0) <= delta:
        return 0.0
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        return max(log_delta(mu=mu, epsilon=epsilon), -1e6) - target

    # Phi(-epsilon/mu + mu/2) alone is at most exp(-x^2/2) at x = epsilon/mu - mu/2.
    highest = mu * (mu / 2 + math.sqrt(-2 * target)) * (1 + 1e-12) + 1e-9
    root = 0.0 if excess(0.0) <= 0 else root_between(excess, 0.0, highest)
    return confirmed(lambda epsilon: delta_of(mu=mu, epsilon=epsilon) <= delta, root, 1)


def mu_of(*, epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP gives (epsilon, delta), rounded down."""
    epsilon = require_positive("epsilon", epsilon)
    delta = require_delta(delta)
    target = math.log(delta)

    def excess(log_mu: float) -> float:
        return max(log_delta(mu=math.exp(log_mu), epsilon=epsilon), -1e6) - target

    reach = math.sqrt(-2 * target) + math.sqrt(2 * epsilon) + 40
    # Of a subnormal epsilon the quotient could be 0; mu itself need not be so small.
    lowest = max(math.log(epsilon) - math.log(reach), _LOWEST_LOG_MU)
    root = math.exp(root_between(excess, lowest, math.log(_LARGEST_MU)))
    return confirmed(lambda mu: delta_of(mu=mu, epsilon=epsilon) <= delta, root, -1)


def advantage_of(*, mu: float) -> float:
    """Return any attacker's largest advantage, 2 Phi(mu/2) - 1 (Chourasia & Shah 2023, 4.1)."""
    return delta_of(mu=mu, epsilon=0.0)


def surviving_information_bits(*, mu: float) -> float:
    """Return mu^2/2 nats in bits: what a release between any two starts can tell of its start."""
    return require_positive("mu", mu) ** 2 / 2 / math.log(2) * (1 + _ROUNDING)
