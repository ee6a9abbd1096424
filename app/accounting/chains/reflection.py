"""The reflection coupling: worlds under the same maps and fresh noise do not only drift, they meet.

Of the noisy chain x <- Psi(x) + N(0, noise_std^2 I), |Psi(x) - Psi(y)| <= contraction |x - y| +
shift: couple the two Gaussians of a step by reflection. Means m apart then coincide after the step
with probability 2 Phi(-m / (2 noise_std)), and stay together; otherwise the distance
exceeds y with probability Phi((m - y) / (2 noise_std)) - Phi((-m - y) / (2 noise_std)), which grows
with m. So the one-dimensional recursion with m = contraction * distance + shift bounds how likely
the worlds are apart after any number of steps, in any dimension: their total variation.

The distribution of the distance is kept in ``_CELLS`` cells, each with a mass and a mean. An answer
is the expectation of an increasing concave function of the distance (docs/guarantees.md, section
3.2). So it only rises where a cell's mass is put at its mean, and where masses and first moments
are too large: both are rounded up.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import scipy  # its parts load when they are first used, which takes long

from app.accounting import gaussian
from app.accounting.chains.reflection_profile import ReflectionProfile
from app.accounting.search import smallest
from app.domain.checks import require_delta, require_noise, require_non_negative
from app.domain.errors import CalibrationError, ParameterError

Floats = npt.NDArray[np.float64]

MOST_STEPS = 500
_CELLS = 72
# Edges are closest where distances are shortest; the last cell has no end.
_SPREAD = (np.arange(_CELLS) / (_CELLS - 1)) ** 1.6
_TOP_STDS = 6.0
# What rounding may take from a cell, relative to the mass before: 2^-53 for each of 72 products in
# a sum, for the four values of Phi or phi in each, and twice that.
_ROUNDING = 4e-14
_FURTHEST = 1e150
_LEAST_MASS = 1e-250
_LARGEST_EPSILON = 1000.0


@dataclass(frozen=True)
class NoisyStep:
    """One step of the chain.

    Attributes:
        contraction, shift: of its map.
        noise_std: per coordinate, above 0.
    """

    contraction: float
    shift: float
    noise_std: float

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite, or negative, and a step without noise."""
        require_non_negative("contraction", self.contraction)
        require_non_negative("shift", self.shift)
        require_noise("noise_std", self.noise_std)


Run = tuple[tuple[NoisyStep, int], ...]
"""Steps, each with how often it is taken in a row."""


@dataclass(frozen=True, eq=False)
class Apart:
    """The worlds that have not met before the noise of a step, and that step.

    Attributes:
        distances: of the centres of the step's two Gaussians, in units of 2 noise_std.
        masses: the probability of each.
        step: the step whose noise is next.
        before: the same one step earlier; None for the first step.
    """

    distances: Floats
    masses: Floats
    step: NoisyStep
    before: "Apart | None"

    @cached_property
    def total_variation(self) -> float:
        """The probability that the worlds do not meet in this step either, rounded up."""
        stays = scipy.special.erf(self.distances / math.sqrt(2)) * (1 + 1e-14)
        return min(1.0, float(self.masses @ stays) * (1 + 1e-12) + 1e-300)

    def delta(self, *, epsilon: float) -> float:
        """Return a delta that holds at ``epsilon`` after this step, rounded up; at most 1."""
        if require_non_negative("epsilon", epsilon) == 0:
            return self.total_variation
        if self.before is None:
            return gaussian.delta_of(mu=2 * float(self.distances[0]), epsilon=epsilon)
        return min(self.total_variation, _profile_of(self).delta(epsilon=epsilon))

    def epsilon(self, *, delta: float) -> float:
        """Return an epsilon that holds at ``delta`` after this step, rounded up.

        Raises:
            CalibrationError: there is none below 1000.
        """
        delta = require_delta(delta)
        highest = 1.0
        while self.delta(epsilon=highest) > delta:
            highest *= 2
            if highest > _LARGEST_EPSILON:
                raise CalibrationError("the coupling has no finite epsilon at this delta")
        return smallest(
            lambda epsilon: self.delta(epsilon=epsilon) <= delta, highest=highest, width=1e-9
        )


class ReflectionCoupling:
    """Follows two worlds through a chain; each step is computed once, when it is first asked for.

    Args:
        start_distance: how far apart the worlds may start.
    """

    __slots__ = ("_apart", "_start", "_steps")

    def __init__(self, *, start_distance: float) -> None:
        self._start = require_non_negative("start_distance", start_distance)
        self._steps: list[NoisyStep] = []
        self._apart: list[Apart] = []

    def follow(self, run: Run) -> None:
        """Count a run, which begins with all that was counted before.

        Steps beyond the first 500 are post-processing of the rest.
        """
        counted = len(self._steps)
        for step, times in run:
            known = min(counted, times)
            counted -= known
            self._steps += [step] * min(times - known, MOST_STEPS - len(self._steps))

    def apart(self, *, steps: int) -> Apart:
        """Return what is left at the last of the first ``steps`` steps that were counted.

        Raises:
            ParameterError: no step was counted, or fewer than ``steps``.
            CalibrationError: the distance leaves the range of floating point.
        """
        steps = min(steps, MOST_STEPS)
        if not 1 <= steps <= len(self._steps):
            raise ParameterError("steps", f"from 1 to {len(self._steps)}")
        while len(self._apart) < steps:
            step = self._steps[len(self._apart)]
            before = self._apart[-1] if self._apart else None
            if before is not None and before.total_variation < _LEAST_MASS:
                self._apart.append(before)  # the rest is post-processing
                continue
            distances, masses = (
                (np.array([self._start]), np.ones(1)) if before is None else _after_noise(before)
            )
            centres = (step.contraction * distances + step.shift) / (2 * step.noise_std)
            if not centres.max() <= _FURTHEST:
                raise CalibrationError("the worlds are too far apart for a coupling")
            self._apart.append(Apart(centres * (1 + 1e-15), masses, step, before))
        return self._apart[steps - 1]


def apart_after(start_distance: float, run: Run) -> Apart:
    """Return what is left at the last step of a run.

    Raises:
        ParameterError: ``start_distance`` is out of its range, or the run is empty.
        CalibrationError: the distance leaves the range of floating point.
    """
    if len(run) == 1:
        coupling = _constant_coupling(start_distance, run[0][0])
    else:
        coupling = ReflectionCoupling(start_distance=start_distance)
        coupling.follow(run)
    return coupling.apart(steps=sum(count for _, count in run))


@lru_cache(maxsize=16)
def _constant_coupling(start_distance: float, step: NoisyStep) -> ReflectionCoupling:
    """Return a coupling of equal steps; what is computed of it serves all numbers of steps."""
    coupling = ReflectionCoupling(start_distance=start_distance)
    coupling.follow(((step, MOST_STEPS),))
    return coupling


@lru_cache(maxsize=4)
def _profile_of(apart: Apart) -> ReflectionProfile:
    before = apart.before or apart
    scale = 2 * before.step.noise_std / apart.step.noise_std * (1 + 1e-15)
    return ReflectionProfile(
        distances=before.distances,
        masses=before.masses,
        least=before.step.shift / (2 * before.step.noise_std),
        slope=apart.step.contraction * scale,
        offset=apart.step.shift / apart.step.noise_std * (1 + 1e-15),
    )


def least_delta(*, run: Run, epsilon: float) -> float:
    """Return a lower bound on the delta of a run's coupling: where it is large, no coupling helps.

    It is a formula, because the distance is at least the shift in every step.
    """
    log_apart, log_stays, last, steps = 0.0, 0.0, 0.0, 0
    for step, count in run:
        taken = min(count, MOST_STEPS - steps)
        if taken:
            last = step.shift / step.noise_std
            if last == 0:
                return 0.0
            log_stays = math.log(math.erf(last / math.sqrt(8)) or 1e-300)
            log_apart += taken * log_stays
            steps += taken
    log_end = gaussian.log_delta(mu=last, epsilon=epsilon) - log_stays
    return math.exp(max(-700.0, min(0.0, log_apart + log_end)))


def _after_noise(apart: Apart) -> tuple[Floats, Floats]:
    """Return distances and masses of the worlds that a step's noise leaves apart.

    In units of 2 noise_std the density of the distance is phi(y - m) - phi(y + m) at y > 0. Mass
    and first moment of a cell are differences of their integrals.
    """
    centres, weights = apart.distances, apart.masses
    total = float(weights.sum())
    mean = float(weights @ centres) / total
    spread = math.sqrt(float(weights @ (centres - mean) ** 2) / total + 1)
    edges = _SPREAD[:, None] * (mean + _TOP_STDS * spread)
    below, beyond = edges - centres, edges + centres
    left, right = scipy.special.ndtr(below), scipy.special.ndtr(beyond)
    mass = np.append((left - right) @ weights, 0.0)
    moment = (left + right - 1) @ (weights * centres)
    moment -= (np.exp(-below * below / 2) - np.exp(-beyond * beyond / 2)) @ (
        weights / math.sqrt(2 * math.pi)
    )
    moment = np.append(moment, total * mean)
    masses = np.maximum(np.diff(mass), 0.0) + _ROUNDING * total
    moments = np.maximum(np.diff(moment), 0.0) + _ROUNDING * total * (mean + 1)
    return moments / masses * (2 * apart.step.noise_std * (1 + 1e-15)), masses
