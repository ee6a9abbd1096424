"""What the reflection coupling gives at an epsilon above 0 (docs/guarantees.md, section 3.2).

With theta(r) = delta(epsilon) of r-GDP, and worlds that are still apart before the last step,

    delta(epsilon) <= E theta(r),    r = offset + slope * distance after the step before.

theta is convex at first and concave from r = sqrt(2 epsilon) on. The noise of the step before
smooths it: with means m apart,

    V(m) = integral of theta(offset + slope y) (phi(y - m) - phi(y + m)) over y > 0,

all distances in units of twice that step's noise_std. E V(m) is at most the mean, over the cells of
``reflection``, of the least concave function above V. V is bounded from above by straight lines
above theta, one for each interval of y, and taken at the upper end of each interval of m.
"""

import math
from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from operator import mul, sub
from typing import Final

from app.accounting.chains.folded_normal import DENSITY, ROOT_HALF, SURE, FoldedNormals
from app.accounting.numerics import erfcx

# Intervals are even as far as distances are likely, and grow from there.
_EVEN_INTERVALS: Final = 120
_GROWTH: Final = 1.3
_FURTHEST: Final = 1e12
_LIKELY_STDS: Final = 7.0
_WIDE: Final = 0.3
_ROUNDING: Final = 1e-13

Floats = list[float]
Integrals = tuple[int, Floats, Floats]
"""The number of the first interval, and mass and first moment of it and of those after it."""


class ReflectionProfile:
    """delta for every epsilon.

    Args:
        before: distances before the noise of the last step but one, in units of twice its
            noise_std.
        least: what no such distance goes below.
        slope, offset: from a distance after that noise, in the same unit, to the separation of the
            last step's Gaussians in standard deviations.
    """

    def __init__(self, *, before: FoldedNormals, least: float, slope: float, offset: float) -> None:
        self._before = before
        likely = before.mean + _LIKELY_STDS * math.sqrt(before.variance + 1)
        self._edges = _intervals(0.0, likely)
        edges = [*self._edges, math.inf]
        self._separations = [offset + slope * edge for edge in self._edges]
        self._slope = slope
        self._single = len(before.centres) == 1
        if self._single:
            self._points = before.centres
            self._integrals = [_integrals(self._points[0], edges, 0)]
        else:
            self._points = _intervals(least, least + likely)
            self._integrals = _all_integrals(self._points, edges)

    def delta(self, *, epsilon: float) -> float:
        """Return an upper bound; ``epsilon`` is above 0."""
        heights, slopes = self._lines_above_theta(epsilon)
        values = []
        for first, masses, moments in self._integrals:
            part = slice(first, first + len(masses))
            value = sum(map(mul, heights[part], masses)) + sum(map(mul, slopes[part], moments))
            values.append(min(float(value) * (1 + 1e-12) + _ROUNDING, 1.0))
        if self._single:
            return self._before.masses[0] * values[0]
        # The value at the upper end of each interval holds in all of it: V grows.
        ends = [*list(accumulate(values, max))[1:], 1.0]
        corners = _upper_hull(self._points, ends)
        majorant = _between(
            [self._points[corner] for corner in corners],
            [ends[corner] for corner in corners],
            self._before.centres,
        )
        return min(1.0, math.fsum(map(mul, self._before.masses, majorant)) * (1 + 1e-12))

    def _lines_above_theta(self, epsilon: float) -> tuple[Floats, Floats]:
        """Return height at y = 0 and slope of a line above theta for each interval of y."""
        turning = math.sqrt(2 * epsilon)
        heights, slopes = [], []
        at_end = _theta(self._separations[0], epsilon)
        for (start, end), (low, high) in zip(
            pairwise(self._separations), pairwise(self._edges), strict=True
        ):
            at_start, at_end = at_end, _theta(end, epsilon)
            # Chords where theta is convex, tangents where it is concave, a constant elsewhere.
            touch, where, slope = at_end, low, 0.0
            if end <= turning:
                touch, slope = at_start, (at_end - at_start) / (high - low)
            elif start >= turning and end - start <= _WIDE:
                middle = (start + end) / 2
                touch, where = _theta(middle, epsilon), (low + high) / 2
                lean = (middle / 2 - epsilon / middle) * ROOT_HALF
                slope = self._slope * math.exp(-lean * lean) * DENSITY
            heights.append(touch - slope * where)
            slopes.append(slope)
        # Beyond the last edge theta is at most 1.
        return [*heights, 1.0], [*slopes, 0.0]


def _intervals(start: float, likely: float) -> Floats:
    width = (likely - start) / _EVEN_INTERVALS
    even = [start + width * interval for interval in range(_EVEN_INTERVALS)]
    growing = int(math.log(max(_FURTHEST / likely, 2.0)) / math.log(_GROWTH))
    return even + [likely * _GROWTH**power for power in range(growing + 1)]


def _all_integrals(points: Floats, edges: Floats) -> list[Integrals]:
    """Return the integrals for every point; even points and edges share a table of gains."""
    even, width, least = _EVEN_INTERVALS, edges[1], points[0]
    left = _Steps([number * width - least for number in range(-even, even + 1)])
    right = _Steps([number * width + least for number in range(2 * even + 1)])
    found = []
    for index, point in enumerate(points[:even]):
        below, beyond = slice(even - index, 2 * even - index), slice(index, index + even)
        gained, lost = left.mass[below], right.mass[beyond]
        falls = zip(left.density[below], right.density[beyond], strict=True)
        moments = [
            point * (one + other) - near + far
            for one, other, (near, far) in zip(gained, lost, falls, strict=True)
        ]
        _, masses_after, moments_after = _integrals(point, edges, even)
        masses = list(map(sub, gained, lost)) + masses_after
        found.append((0, masses, moments + moments_after))
    return found + [_integrals(point, edges, 0) for point in points[even:]]


class _Steps:
    """What Phi and phi gain from each of growing numbers to the next."""

    def __init__(self, numbers: Floats) -> None:
        tails = [math.erfc(-number * ROOT_HALF) / 2 for number in numbers]
        densities = [math.exp(-number * number / 2) * DENSITY for number in numbers]
        self.mass = [end - start for start, end in pairwise(tails)]
        self.density = [end - start for start, end in pairwise(densities)]


def _integrals(point: float, edges: Floats, first: int) -> Integrals:
    """Return mass and first moment of phi(y - m) - phi(y + m) by interval, those near m only."""
    first = max(bisect_left(edges, point - SURE) - 1, first)
    ends = edges[first : bisect_right(edges, point + SURE) + 1]
    left, right = _Steps([end - point for end in ends]), _Steps([end + point for end in ends])
    gained, lost = left.mass, right.mass
    masses = list(map(sub, gained, lost))
    moments = [
        point * (one + other) - near + far
        for one, other, near, far in zip(gained, lost, left.density, right.density, strict=True)
    ]
    return first, masses, moments


def _theta(separation: float, epsilon: float) -> float:
    """Return delta(epsilon) of two Gaussians, and what rounding may take from it."""
    half = separation / 2
    far = epsilon / max(separation, 1e-300)
    lean = (half - far) * ROOT_HALF
    first = math.erfc(-lean) / 2
    second = erfcx((half + far) * ROOT_HALF) * math.exp(-lean * lean) / 2
    return min(max(first - second, 0.0), 1.0) + _ROUNDING * first


def _upper_hull(points: Floats, values: Floats) -> list[int]:
    """Return the corners of the least concave function above the values; points grow."""
    corners: list[int] = []
    for index in range(len(points)):
        while len(corners) >= 2:
            first, second = corners[-2], corners[-1]
            rise = (values[second] - values[first]) * (points[index] - points[first])
            if rise > (values[index] - values[first]) * (points[second] - points[first]):
                break
            corners.pop()
        corners.append(index)
    return corners


def _between(points: Floats, values: Floats, where: Floats) -> Floats:
    """Return straight lines between the points, and the last value beyond them."""
    found = []
    for each in where:
        after = min(max(bisect_right(points, each), 1), len(points) - 1)
        low, high = points[after - 1], points[after]
        share = min(max((each - low) / (high - low), 0.0), 1.0)
        found.append(values[after - 1] + share * (values[after] - values[after - 1]))
    return found
