"""How far apart two worlds are after noise: masses and first moments of folded normals.

In units of 2 noise_std, worlds m apart before the noise are y > 0 apart after it with the density
phi(y - m) - phi(y + m), and otherwise met. Its integrals from 0 to y are

    mass:    Phi(y - m) - Phi(y + m), and a constant
    moment:  m (Phi(y - m) + Phi(y + m) - 1) - phi(y - m) + phi(y + m)

They need the standard library only, so that certificates can be verified and runs planned without
NumPy and SciPy; where both are installed, they compute them faster. Of many m at once, those whose
Phi is 0 or 1 to the last digit need no evaluation.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from itertools import accumulate, repeat
from operator import add, mul, neg, sub
from typing import Final

Below = Callable[[list[float], list[float], list[float]], list[tuple[float, float]]]

SURE: Final = 8.3
"""Phi(-8.3) is below 2^-54."""

ROOT_HALF: Final = math.sqrt(0.5)
DENSITY: Final = math.sqrt(0.5 / math.pi)


class FoldedNormals:
    """The distances of worlds before noise, each with a mass.

    Attributes:
        centres, masses: shorter distances first.
        total: of all masses.
        mean, variance: of the distances.
    """

    def __init__(self, centres: Sequence[float], masses: Sequence[float]) -> None:
        pairs = sorted(zip(centres, masses, strict=True))
        self.centres = [centre for centre, _ in pairs]
        self.masses = [mass for _, mass in pairs]
        self._scaled = [centre * ROOT_HALF for centre in self.centres]
        self._moments = list(map(mul, self.masses, self.centres))
        self._mass_before = list(accumulate(self.masses, initial=0.0))
        self._moment_before = list(accumulate(self._moments, initial=0.0))
        self.total = self._mass_before[-1]
        self.mean = self._moment_before[-1] / self.total
        squares = ((centre - self.mean) * (centre - self.mean) for centre in self.centres)
        self.variance = sum(map(mul, self.masses, squares)) / self.total

    def below(self, distances: list[float]) -> list[tuple[float, float]]:
        """Return mass, less that of all, and first moment up to each distance after the noise."""
        quicker = arrays()
        if quicker is not None:
            return quicker(self.centres, self.masses, distances)
        return [self._below(distance) for distance in distances]

    def _below(self, distance: float) -> tuple[float, float]:
        low = bisect_left(self.centres, distance - SURE)
        high = bisect_left(self.centres, distance + SURE, low)
        mass, moment = self._mass_before[low] - self.total, self._moment_before[low]
        scaled = distance * ROOT_HALF
        masses, moments = self.masses[low:high], self._moments[low:high]
        tails, densities = _tails_and_densities(map(sub, self._scaled[low:high], repeat(scaled)))
        mass += sum(map(mul, tails, masses)) / 2
        moment += sum(map(mul, tails, moments)) / 2
        lost = sum(map(mul, densities, masses))
        # Of the mirror images, those that are near.
        near = bisect_left(self.centres, SURE - distance)
        tails, densities = _tails_and_densities(map(add, self._scaled[:near], repeat(scaled)))
        mass += sum(map(mul, tails, self.masses)) / 2
        moment -= sum(map(mul, tails, self._moments)) / 2
        lost -= sum(map(mul, densities, self.masses))
        return mass, moment - lost * DENSITY


def _tails_and_densities(scaled: Iterable[float]) -> tuple[list[float], Iterable[float]]:
    """Return erfc(x) and exp(-x^2) of each x."""
    points = list(scaled)
    squares = map(mul, points, map(neg, points))
    return list(map(math.erfc, points)), map(math.exp, squares)


@cache
def arrays() -> Below | None:
    """Return the same on arrays, ten times as fast; None where NumPy or SciPy is not installed."""
    try:
        np, ndtr = import_module("numpy"), import_module("scipy.special").ndtr
    except ModuleNotFoundError:
        return None

    def below(
        centres: list[float], masses: list[float], distances: list[float]
    ) -> list[tuple[float, float]]:
        before, weights = np.array(centres), np.array(masses)
        ends = np.array(distances)[:, None]
        near, far = ends - before, ends + before
        left, right = ndtr(near), ndtr(far)
        mass = (left - right) @ weights
        moment = (left + right - 1) @ (weights * before)
        moment -= (np.exp(-near * near / 2) - np.exp(-far * far / 2)) @ (weights * DENSITY)
        return list(zip(mass.tolist(), moment.tolist(), strict=True))

    return below
