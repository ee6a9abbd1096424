"""The noisy chain: x <- Psi(x) + N(0, noise_std^2 I), the same maps in both worlds.

With |Psi(x) - Psi(y)| <= contraction |x - y| + shift, starting at most ``start_distance`` apart,
two numbers suffice (docs/guarantees.md, Theorem 1):

    drift    <- contraction   * drift    + shift         (D: the worlds, sharing their noise)
    variance <- contraction^2 * variance + noise_std^2   (W: of one coordinate, from the noise)
    mu       <- min(mu, drift / sqrt(variance))

drift/sqrt(variance) is Koloskova et al. 2025, Theorem A.9, as a trade-off function.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from app.accounting import gaussian
from app.domain.checks import require_fraction, require_noise, require_non_negative, require_steps
from app.domain.errors import ParameterError

# One step does at most four roundings of half a unit each; these factors outweigh them.
_UP = 1.0 + 2.0**-50
_DOWN = 1.0 - 2.0**-50
# Below these the numbers lose digits to underflow: the drift stops falling, the noise is ignored.
_SMALLEST_DRIFT = 1e-290
_SMALLEST_VARIANCE = 1e-290


class NoisyChain:
    """Privacy odometer of a noisy chain: ``step`` costs well under two microseconds.

    It starts from z0, how far apart the worlds may be when they share their noise so far.

    Attributes:
        mu: the guarantee so far, rounded up; infinite before the first noisy step.
        drift: D, rounded up.
        variance: W, rounded down.
    """

    __slots__ = ("drift", "mu", "steps", "variance")

    def __init__(self, *, start_distance: float) -> None:
        self.drift = require_non_negative("start_distance", start_distance)
        self.variance = 0.0
        self.mu = math.inf
        self.steps = 0

    def step(self, contraction: float, shift: float, noise_std: float) -> float:
        """Count one step, checked by ``check_step``, that was taken, and return mu so far."""
        drift = (contraction * self.drift + shift) * _UP
        if drift < _SMALLEST_DRIFT and (self.drift > 0.0 or shift > 0.0):
            drift = _SMALLEST_DRIFT
        self.drift = drift
        self.variance = variance = (
            contraction * contraction * self.variance + noise_std * noise_std
        ) * _DOWN
        self.steps += 1
        if variance > _SMALLEST_VARIANCE:
            mu = drift / math.sqrt(variance) * _UP
            if not mu >= self.mu:
                self.mu = mu
        return self.mu

    def certified_mu(self) -> float:
        """Return mu; ``ParameterError`` if no noise was added yet, or a number overflowed."""
        if not math.isfinite(self.drift):
            raise ParameterError("start_distance", "small enough for the drift to stay finite")
        if not math.isfinite(self.variance) or not math.isfinite(self.mu):
            raise ParameterError("noise_std", "above 0 in at least one step, and its square finite")
        return self.mu


def check_step(*, contraction: float, shift: float, noise_std: float) -> None:
    """Raise ``ParameterError`` unless the numbers of one step are finite and not negative."""
    require_non_negative("contraction", contraction)
    require_non_negative("shift", shift)
    if require_non_negative("noise_std", noise_std) > 0:
        require_noise("noise_std", noise_std)


def one_minus_product(rate: float, decay: float) -> float:
    """Return the smallest float64 that is at least 1 - rate * decay, for 0 <= rate * decay < 1."""
    exact = 1 - Fraction(rate) * Fraction(decay)
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def constant_mu(
    *, start_distance: float, contraction: float, shift: float, noise_std: float, steps: int
) -> float:
    """Return the running minimum after ``steps`` equal steps in closed form, rounded up.

    With r = contraction^k the bound after k steps is a function of r with one minimum, so the best
    prefix is found without walking. Any prefix is a valid bound: only tightness rests on that.
    """
    distance = require_non_negative("start_distance", start_distance)
    contraction = require_fraction("contraction", contraction)
    shift = require_non_negative("shift", shift)
    noise_std = require_noise("noise_std", noise_std)
    steps = require_steps("steps", steps)
    if distance == 0 and shift == 0:
        return 0.0
    prefixes = {1, steps}
    turning = _best_prefix(distance, contraction, shift)
    if turning < steps:
        prefixes |= {max(1, math.floor(turning)), min(steps, math.floor(turning) + 1)}
    return min(
        prefix_mu(
            distance=distance,
            contraction=contraction,
            shift=shift,
            noise_std=noise_std,
            steps=prefix,
        )
        for prefix in prefixes
    )


def _best_prefix(distance: float, contraction: float, shift: float) -> float:
    """Return the real number of steps at which the bound is smallest, perhaps infinite."""
    if shift == 0:
        return math.inf
    if contraction == 1:
        return distance / shift
    remaining = 1.0 - distance * (1.0 - contraction) / shift
    return math.log(remaining) / math.log(contraction) if remaining > 0 else math.inf


def prefix_mu(
    *, distance: float, contraction: float, shift: float, noise_std: float, steps: int
) -> float:
    """Return drift / sqrt(variance) after equal steps whose numbers were checked, rounded up."""
    if contraction == 1:
        drift, variance_factor, exponent = distance + steps * shift, float(steps), 0.0
    else:
        gap = 1.0 - contraction
        # 1 - contraction is exact above 1/2, where log(contraction) would lose digits.
        rate = math.log1p(-gap) if contraction > 0.5 else math.log(contraction)
        exponent = steps * rate
        # r is kept above the range in which it would lose digits; that only raises the bound.
        remaining = math.exp(max(exponent, -650.0))
        drift = remaining * distance + shift * (-math.expm1(exponent)) / gap
        variance_factor = -math.expm1(2 * exponent) / (gap * (1.0 + contraction))
    if not math.isfinite(drift):
        raise ParameterError("start_distance", "small enough for the drift to stay finite")
    mu = drift / (noise_std * math.sqrt(variance_factor))
    return max(mu, 1e-290) * (1 + 1e-14 + 1e-15 * min(-exponent, 700.0))


MOST_STEPS: Final = 500
"""How many steps of a run the reflection coupling counts."""


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


def least_delta(*, run: Run, epsilon: float) -> float:
    """Return a lower bound on the delta of a run's coupling: if it is large, no coupling helps."""
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
