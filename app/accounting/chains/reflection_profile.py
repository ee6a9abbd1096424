"""What the reflection coupling gives at an epsilon above 0.

The worlds that are still apart before the last step's noise are two Gaussians, at most some r
standard deviations apart, and theta(r) = delta(epsilon) of r-GDP is what those differ by:

    delta(epsilon) <= E theta(r),    r = offset + slope * distance after the step before.

theta is convex at first and concave from r = sqrt(2 epsilon) on, so that the cells of
``reflection``, right for concave functions, must not be put into it. The noise of the step before
smooths it: with means m apart,

    V(m) = integral of theta(offset + slope y) (phi(y - m) - phi(y + m)) over y > 0,

all distances in units of twice that step's noise_std. The least concave function above V is little
above it, and E V(m) is at most its mean over the cells. V is bounded from above by straight lines
above theta, one for each interval of y, and taken at the upper end of each interval of m.
"""

import math

import numpy as np
import numpy.typing as npt
import scipy  # its parts load when they are first used, which takes long

Floats = npt.NDArray[np.float64]

# Intervals are even as far as distances are likely, and grow from there.
_EVEN_INTERVALS = 120
_GROWTH = 1.3
_FURTHEST = 1e12
_LIKELY_STDS = 7.0
_WIDE = 0.3
_ROUNDING = 1e-13


class ReflectionProfile:
    """delta for every epsilon.

    Args:
        distances: before the noise of the last step but one, in units of twice its noise_std.
        masses: the probability of each.
        least: what no such distance goes below.
        slope, offset: from a distance after that noise, in the same unit, to the separation of the
            last step's Gaussians in standard deviations.
    """

    def __init__(
        self, *, distances: Floats, masses: Floats, least: float, slope: float, offset: float
    ) -> None:
        self._distances, self._masses = distances, masses
        mean = float(masses @ distances) / float(masses.sum())
        spread = math.sqrt(float(masses @ (distances - mean) ** 2) / float(masses.sum()) + 1)
        likely = mean + _LIKELY_STDS * spread
        edges = _intervals(0.0, likely)
        self._separations = offset + slope * edges
        self._slope, self._edges = slope, edges
        self._single = distances.size == 1
        self._points = distances if self._single else _intervals(least, least + likely)
        self._mass, self._moment = _integrals(self._points, edges)

    def delta(self, *, epsilon: float) -> float:
        """Return an upper bound; ``epsilon`` is above 0."""
        heights, slopes = self._lines_above_theta(epsilon)
        values = heights @ self._mass + slopes @ self._moment
        values = np.minimum(values * (1 + 1e-12) + _ROUNDING, 1.0)
        if self._single:
            return float(self._masses @ values)
        # The value at the upper end of each interval holds in all of it: V grows.
        ends = np.append(np.maximum.accumulate(values)[1:], 1.0)
        corners = _upper_hull(self._points, ends)
        majorant = np.interp(self._distances, self._points[corners], ends[corners])
        return min(1.0, float(self._masses @ majorant) * (1 + 1e-12))

    def _lines_above_theta(self, epsilon: float) -> tuple[Floats, Floats]:
        """Return height at y = 0 and slope of a line above theta for each interval of y."""
        starts, ends = self._separations[:-1], self._separations[1:]
        at_edges = _theta(self._separations, epsilon)
        turning = math.sqrt(2 * epsilon)
        widths = np.diff(self._edges)
        # Chords where theta is convex, tangents where it is concave, a constant elsewhere.
        chords = np.diff(at_edges) / widths
        middle = (starts + ends) / 2
        tangents = self._slope * np.exp(-((middle / 2 - epsilon / middle) ** 2) / 2)
        tangents /= math.sqrt(2 * math.pi)
        convex = ends <= turning
        concave = (starts >= turning) & (ends - starts <= _WIDE)
        slopes = np.where(convex, chords, np.where(concave, tangents, 0.0))
        touch = np.where(
            convex, at_edges[:-1], np.where(concave, _theta(middle, epsilon), at_edges[1:])
        )
        where = np.where(concave, (self._edges[:-1] + self._edges[1:]) / 2, self._edges[:-1])
        # Beyond the last edge theta is at most 1.
        return np.append(touch - slopes * where, 1.0), np.append(slopes, 0.0)


def _intervals(start: float, likely: float) -> Floats:
    even = np.linspace(start, likely, _EVEN_INTERVALS + 1)
    growing = int(math.log(max(_FURTHEST / likely, 2.0)) / math.log(_GROWTH))
    return np.concatenate([even, likely * _GROWTH ** np.arange(1, growing + 1)])


def _integrals(points: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Return mass and first moment of phi(y - m) - phi(y + m) by interval and by m."""
    below, beyond = edges[:, None] - points, edges[:, None] + points
    left, right = scipy.special.ndtr(below), scipy.special.ndtr(beyond)
    mass = np.vstack([left - right, np.zeros(points.size)])
    moment = (left + right - 1) * points
    moment -= (np.exp(-below * below / 2) - np.exp(-beyond * beyond / 2)) / math.sqrt(2 * math.pi)
    moment = np.vstack([moment, points])
    return np.maximum(np.diff(mass, axis=0), 0.0), np.maximum(np.diff(moment, axis=0), 0.0)


def _theta(separations: Floats, epsilon: float) -> Floats:
    half = separations / 2
    far = epsilon / np.maximum(separations, 1e-300)
    first = scipy.special.ndtr(half - far)
    second = np.exp(epsilon + scipy.special.log_ndtr(-half - far))
    theta: Floats = np.clip(first - second, 0.0, 1.0) + _ROUNDING * first
    return theta


def _upper_hull(points: Floats, values: Floats) -> list[int]:
    """Return the corners of the least concave function above the values; points grow."""
    corners: list[int] = []
    for index in range(points.size):
        while len(corners) >= 2:
            first, second = corners[-2], corners[-1]
            rise = (values[second] - values[first]) * (points[index] - points[first])
            if rise > (values[index] - values[first]) * (points[second] - points[first]):
                break
            corners.pop()
        corners.append(index)
    return corners
