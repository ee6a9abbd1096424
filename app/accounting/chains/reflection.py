"""The reflection coupling: worlds under the same maps and fresh noise do not only drift, they meet.

Of the noisy chain x <- Psi(x) + N(0, noise_std^2 I), |Psi(x) - Psi(y)| <= contraction |x - y| +
shift: means m apart coincide after a step with probability 2 Phi(-m / (2 noise_std)), and stay
together; otherwise the distance exceeds y with probability Phi((m - y) / (2 noise_std)) -
Phi((-m - y) / (2 noise_std)). The distribution of the distance is kept in ``CELLS`` cells, each
with a mass and a mean, both rounded up. Source: docs/guarantees.md, section 3.2.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from operator import mul
from typing import Final

from app.accounting import gaussian
from app.accounting.chains.folded_normal import ROOT_HALF, FoldedNormals
from app.accounting.chains.noisy_chain import MOST_STEPS, NoisyStep, Run
from app.accounting.chains.reflection_profile import ReflectionProfile
from app.accounting.numerics import confirmed, root_between
from app.domain.checks import require_delta, require_non_negative
from app.domain.errors import CalibrationError, ParameterError

CELLS: Final = 72
SEARCH_CELLS: Final = 24
"""Enough for a search: an answer is above that of all cells by some tenths of a per cent."""

_TOP_STDS = 6.0
# What rounding may take from a cell, relative to the mass before: 2^-53 for each of 72 products in
# a sum, for the four values of Phi or phi in each, and twice that.
_ROUNDING = 4e-14
_FURTHEST = 1e150
_LEAST_MASS = 1e-250
_LARGEST_EPSILON = 1000.0


@dataclass(frozen=True, eq=False)
class Uncoupled:
    """The worlds that have not met before the noise of a step, and that step.

    Attributes:
        distances: of the centres of the step's two Gaussians, in units of 2 noise_std.
        masses: the probability of each.
        step: the step whose noise is next.
        before: the same one step earlier; None for the first step.
    """

    distances: tuple[float, ...]
    masses: tuple[float, ...]
    step: NoisyStep
    before: "Uncoupled | None"

    @cached_property
    def total_variation(self) -> float:
        """The probability that the worlds do not meet in this step either, rounded up."""
        stays = (math.erf(distance * ROOT_HALF) * (1 + 1e-14) for distance in self.distances)
        return min(1.0, math.fsum(map(mul, self.masses, stays)) * (1 + 1e-12) + 1e-300)

    def delta(self, *, epsilon: float) -> float:
        """Return a delta that holds at ``epsilon`` after this step, rounded up; at most 1."""
        if require_non_negative("epsilon", epsilon) == 0 or not max(self.distances):
            return self.total_variation
        if self.before is None:
            return gaussian.delta_of(mu=2 * self.distances[0], epsilon=epsilon)
        return min(self.total_variation, _profile_of(self).delta(epsilon=epsilon))

    def epsilon(self, *, delta: float) -> float:
        """Return an epsilon that holds at ``delta`` after this step, rounded up."""
        delta = require_delta(delta)
        if self.total_variation <= delta:
            return 0.0
        low, highest = 0.0, 1.0
        while self.delta(epsilon=highest) > delta:
            low, highest = highest, highest * 2
            if highest > _LARGEST_EPSILON:
                raise CalibrationError("the coupling has no finite epsilon at this delta")
        target = math.log(delta)

        def excess(epsilon: float) -> float:
            return math.log(self.delta(epsilon=epsilon)) - target

        root = root_between(excess, low, highest)
        return confirmed(lambda epsilon: self.delta(epsilon=epsilon) <= delta, root, 1)


class ReflectionCoupling:
    """Follows two worlds through a chain; each step is computed when it is first asked for."""

    __slots__ = ("_apart", "_cells", "_start", "_steps")

    def __init__(self, *, start_distance: float, cells: int = CELLS) -> None:
        self._start = require_non_negative("start_distance", start_distance)
        self._cells = cells
        self._steps: list[NoisyStep] = []
        self._apart: list[Uncoupled] = []

    def follow(self, run: Run) -> None:
        """Count a run, which begins with all that was counted before; 500 steps count."""
        counted = len(self._steps)
        for step, times in run:
            known = min(counted, times)
            counted -= known
            self._steps += [step] * min(times - known, MOST_STEPS - len(self._steps))

    def apart(self, *, steps: int) -> Uncoupled:
        """Return what is left at the last of the first ``steps`` steps that were counted."""
        steps = min(steps, MOST_STEPS)
        if not 1 <= steps <= len(self._steps):
            raise ParameterError("steps", f"from 1 to {len(self._steps)}")
        while len(self._apart) < steps:
            step = self._steps[len(self._apart)]
            before = self._apart[-1] if self._apart else None
            if before is not None and before.total_variation < _LEAST_MASS:
                self._apart.append(before)  # the rest is post-processing
                continue
            cells = [(self._start, 1.0)] if before is None else _after_noise(before, self._cells)
            scale = 2 * step.noise_std
            moved = ((step.contraction * mean + step.shift) / scale for mean, _ in cells)
            centres = tuple(centre * (1 + 1e-15) for centre in moved)
            if not max(centres) <= _FURTHEST:
                raise CalibrationError("the worlds are too far apart for a coupling")
            masses = tuple(mass for _, mass in cells)
            self._apart.append(Uncoupled(centres, masses, step, before))
        return self._apart[steps - 1]


def apart_after(start_distance: float, run: Run, *, cells: int = CELLS) -> Uncoupled:
    """Return what is left at the last step of a run."""
    if len(run) == 1:
        coupling = _constant_coupling(start_distance, run[0][0], cells)
    else:
        coupling = ReflectionCoupling(start_distance=start_distance, cells=cells)
        coupling.follow(run)
    return coupling.apart(steps=sum(count for _, count in run))


@lru_cache(maxsize=16)
def _constant_coupling(start_distance: float, step: NoisyStep, cells: int) -> ReflectionCoupling:
    """Return a coupling of equal steps; what is computed of it serves all numbers of steps."""
    coupling = ReflectionCoupling(start_distance=start_distance, cells=cells)
    coupling.follow(((step, MOST_STEPS),))
    return coupling


@lru_cache(maxsize=4)
def _profile_of(apart: Uncoupled) -> ReflectionProfile:
    before = apart.before or apart
    scale = 2 * before.step.noise_std / apart.step.noise_std * (1 + 1e-15)
    return ReflectionProfile(
        before=FoldedNormals(before.distances, before.masses),
        least=before.step.shift / (2 * before.step.noise_std),
        slope=apart.step.contraction * scale,
        offset=apart.step.shift / apart.step.noise_std * (1 + 1e-15),
    )


def _after_noise(apart: Uncoupled, cells: int) -> list[tuple[float, float]]:
    """Return the distances that a step's noise leaves, shorter ones first: means and masses."""
    before = FoldedNormals(apart.distances, apart.masses)
    total, mean = before.total, before.mean
    top = mean + _TOP_STDS * math.sqrt(before.variance + 1)
    below = before.below([share * top for share in _spread(cells)])
    least = _ROUNDING * total
    scale = 2 * apart.step.noise_std * (1 + 1e-15)
    found = []
    for start, end in pairwise([*below, (0.0, total * mean)]):
        mass = max(end[0] - start[0], 0.0) + least
        moment = max(end[1] - start[1], 0.0) + least * (mean + 1)
        found.append((moment / mass * scale, mass))
    return sorted(found)


@cache
def _spread(cells: int) -> tuple[float, ...]:
    """Return where cells begin: closest where distances are shortest; the last has no end."""
    return tuple((cell / (cells - 1)) ** 1.6 for cell in range(cells))
