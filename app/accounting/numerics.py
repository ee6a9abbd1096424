"""Numerical methods for one variable: the scaled error function, an integral, a root.

They need the standard library only, so that a certificate can be verified without NumPy and SciPy.
Accuracies are relative and were compared with 60-digit arithmetic.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Final

from app.domain.errors import CalibrationError

_FRACTION_FROM: Final = 3.0
_FRACTION_TERMS: Final = 40
_ROOT_PI: Final = math.sqrt(math.pi)
_NODES: Final = 16
_PANELS: Final = 16
_MOST_ITERATIONS: Final = 400


def erfcx(x: float) -> float:
    """Return exp(x^2) erfc(x) for x >= 0, within 1e-14 (Abramowitz & Stegun, equation 7.1.14)."""
    if x < _FRACTION_FROM:
        return math.exp(x * x) * math.erfc(x)
    below = x
    for term in range(_FRACTION_TERMS, 0, -1):
        below = x + term / 2 / below
    return 1 / (_ROOT_PI * below)


def integral(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Return a smooth function's Gauss-Legendre integral, and a bound on what it is off by."""
    coarse = _by_panels(function, low, high, _PANELS // 2)
    fine = _by_panels(function, low, high, _PANELS)
    return fine, abs(fine - coarse)


def root_between(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function changes its sign, to the last digits (Chandrupatla 1997)."""
    first, second = high, low
    at_first, at_second = function(first), function(second)
    if math.isnan(at_first) or math.isnan(at_second) or (at_first < 0) == (at_second < 0):
        if at_first == 0 or at_second == 0:
            return first if at_first == 0 else second
        raise CalibrationError("the search for a Gaussian guarantee did not converge")
    share = 0.5
    for _ in range(_MOST_ITERATIONS):
        point = first + share * (second - first)
        value = function(point)
        if math.isnan(value):
            break
        if (value < 0) == (at_first < 0):
            third, at_third = first, at_first
        else:
            third, at_third = second, at_second
            second, at_second = first, at_first
        first, at_first = point, value
        best = first if abs(at_first) < abs(at_second) else second
        width = abs(second - first)
        tolerance = 1e-15 + 1e-14 * abs(best)
        if value == 0 or width <= tolerance:
            return best
        share = _share(first, second, third, at_first, at_second, at_third)
        least = tolerance / 2 / width
        share = min(1 - least, max(least, share))
    raise CalibrationError("the search for a Gaussian guarantee did not converge")


def confirmed(holds: Callable[[float], bool], proposal: float, sign: int) -> float:
    """Return ``proposal`` moved outward (up for sign 1, down for -1) until ``holds`` says yes."""
    move = 2e-15
    for _ in range(60):
        candidate = proposal * (1 + sign * move) + (move / 2 if sign > 0 else 0.0)
        if holds(candidate):
            return candidate
        move *= 2
    raise CalibrationError("the search for a Gaussian guarantee did not converge")


def _share(
    first: float, second: float, third: float, at_first: float, at_second: float, at_third: float
) -> float:
    """Return where between ``first`` and ``second`` to look next: a parabola's root, or half."""
    position = (first - second) / (third - second)
    height = (at_first - at_second) / (at_third - at_second)
    if not (height**2 < position and (1 - height) ** 2 < 1 - position):
        return 0.5
    one = at_first / (at_second - at_first) * at_third / (at_second - at_third)
    other = (third - first) / (second - first) * at_first / (at_third - at_first)
    return one + other * at_second / (at_third - at_second)


def _by_panels(function: Callable[[float], float], low: float, high: float, panels: int) -> float:
    half = (high - low) / panels / 2
    return half * math.fsum(
        weight * function(low + half * (2 * panel + 1 + node))
        for panel in range(panels)
        for node, weight in _gauss_legendre()
    )


@cache
def _gauss_legendre() -> tuple[tuple[float, float], ...]:
    """Return nodes and weights on [-1, 1]: Newton's method on the Legendre polynomial."""
    pairs = []
    for index in range(_NODES):
        node = math.cos(math.pi * (index + 0.75) / (_NODES + 0.5))
        for _ in range(10):
            value, slope = _legendre(node)
            node -= value / slope
        _, slope = _legendre(node)
        pairs.append((node, 2 / ((1 - node * node) * slope * slope)))
    return tuple(pairs)


def _legendre(x: float) -> tuple[float, float]:
    """Return the Legendre polynomial of degree 16 and its derivative."""
    before, value = 1.0, x
    for degree in range(2, _NODES + 1):
        before, value = value, ((2 * degree - 1) * x * value - (degree - 1) * before) / degree
    return value, _NODES * (x * value - before) / (x * x - 1)
