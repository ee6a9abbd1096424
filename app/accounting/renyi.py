"""Renyi divergence to (epsilon, delta), by the better of two conversions.

For a pair with D_alpha <= D at one order alpha > 1:

    Mironov 2017, Proposition 3:        epsilon = D + log(1/delta) / (alpha - 1)
    Balle et al. 2020, Theorem 21
    (Canonne, Kamath & Steinke 2020):   epsilon = D + log(1 - 1/alpha)
                                                  - (log delta + log alpha) / (alpha - 1)

Every order gives a valid bound, so the search over orders may stop anywhere.
"""

import math
from collections.abc import Callable, Sequence

from app.domain.checks import require_delta, require_non_negative
from app.domain.errors import CalibrationError

Curve = Callable[[float], float]

# Relative error of the few operations in each conversion.
_ROUNDING = 1e-13
_LOWEST_LOG_EXCESS = math.log(1e-6)
_HIGHEST_LOG_EXCESS = math.log(1e10)
_GRID = 160


def best_epsilon(*, curve: Curve, delta: float, highest_order: float = math.inf) -> float:
    """Return the smallest epsilon that ``curve`` (order to divergence) gives at ``delta``."""
    log_delta = math.log(require_delta(delta))

    def mironov(order: float, divergence: float) -> float:
        gain = -log_delta / (order - 1)
        return divergence + gain + _ROUNDING * (divergence + gain)

    def balle(order: float, divergence: float) -> float:
        gain = (log_delta + math.log(order)) / (order - 1)
        loss = math.log1p(-1 / order)
        return divergence + loss - gain + _ROUNDING * (divergence + abs(loss) + abs(gain))

    return max(0.0, _best(curve, (mironov, balle), highest_order))


def best_log_delta(*, curve: Curve, epsilon: float, highest_order: float = math.inf) -> float:
    """Return the smallest log delta that ``curve`` gives at ``epsilon``, at most 0."""
    epsilon = require_non_negative("epsilon", epsilon)

    def mironov(order: float, divergence: float) -> float:
        size = (order - 1) * (divergence + epsilon)
        return (order - 1) * (divergence - epsilon) + _ROUNDING * size

    def balle(order: float, divergence: float) -> float:
        loss = math.log1p(-1 / order)
        size = (order - 1) * (divergence + epsilon + abs(loss)) + math.log(order)
        value = (order - 1) * (divergence - epsilon + loss) - math.log(order)
        return value + _ROUNDING * size

    return min(0.0, _best(curve, (mironov, balle), highest_order))


def advantage(*, curve: Curve, highest_order: float = math.inf) -> float:
    """Return a bound on any attacker's true-positive minus false-positive rate.

    min over orders q of sqrt(2 D_q) and (q e^{D_q (q-1)/q} / (q-1)) [2(q-1)]^{1/q} - 1.
    Source: Chourasia & Shah 2023, Theorem 4.1.
    """

    def pinsker(order: float, divergence: float) -> float:
        del order
        return math.sqrt(2 * divergence) * (1 + _ROUNDING)

    def hypothesis_test(order: float, divergence: float) -> float:
        exponent = divergence * (order - 1) / order + math.log(2 * (order - 1)) / order
        if exponent > 700:
            return math.inf
        return order / (order - 1) * math.exp(exponent) * (1 + _ROUNDING) - 1

    return min(1.0, _best(curve, (hypothesis_test, pinsker), highest_order))


def _best(
    curve: Curve, rules: Sequence[Callable[[float, float], float]], highest_order: float
) -> float:
    """Return the least that any rule gives at any order, from (order, divergence)."""
    top = _HIGHEST_LOG_EXCESS
    if highest_order < 1 + math.exp(top):
        top = math.log(highest_order - 1)
    bottom = min(_LOWEST_LOG_EXCESS, top - 1)
    grid = [bottom + (top - bottom) * i / _GRID for i in range(_GRID + 1)]
    best = math.inf
    for rule in rules:

        def at(log_excess: float, rule: Callable[[float, float], float] = rule) -> float:
            order = min(1 + math.exp(log_excess), highest_order)
            divergence = curve(order)
            if not 0 <= divergence < math.inf:
                return math.inf
            value = rule(order, divergence)
            return value if not math.isnan(value) else math.inf

        values = [at(point) for point in grid]
        start = min(range(len(grid)), key=values.__getitem__)
        best = min(best, values[start])
        if math.isfinite(values[start]):
            best = min(best, _golden(at, grid[max(start - 1, 0)], grid[min(start + 1, _GRID)]))
    if not math.isfinite(best):
        raise CalibrationError("no Renyi order gives a finite bound")
    return best


def _golden(function: Curve, low: float, high: float) -> float:
    """Search for the least by golden sections: they come close to where a curve ends."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(40):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return min(at_left, at_right)
