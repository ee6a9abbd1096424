"""The greatest convex minorant of docs/guarantees.md, Theorem 4, built as steps are walked.

    |Psi_t(x) - Psi'_t(y)| <= contraction_t |x - y| + shift_t, noise of noise_std_t in both worlds

With P_k the product of the contractions up to k, V_k = sum_j noise_std_j^2 / P_j^2 and
S_k = start_distance + sum_j shift_j / P_j, the best bound on the last iterate is

    mu^2 = sum over the segments of (dS)^2 / dV

of the greatest convex minorant of (0, 0), (V_k, S_k). Section 2.4 says how it is computed: a block
holds its rise, its run and its own unit of length P, so nothing overflows; all but the units round
outward, and ``mu`` adds what the units may be off.
"""

import math
from collections.abc import Sequence
from typing import Final

from app.domain.checks import require_non_negative
from app.domain.errors import ParameterError

# Outweighs the roundings of one step.
_UP: Final = 1.0 + 2.0**-49
_DOWN: Final = 1.0 - 2.0**-49
# What a unit may be off after one step, and after many at once (``power``).
_UNIT_OFF: Final = 4e-16
_POWER_OFF: Final = 6e-13
# A shift that was there never becomes 0: noise must hide it, or nothing does.
_SMALLEST: Final = 1e-300


class Minorant:
    """The steps of a chain, as far as the two worlds' last iterates depend on them.

    Attributes:
        waiting: the shift that no noise has followed yet, in units of the present iterate.
    """

    __slots__ = ("_off", "_rises", "_runs", "_shifted", "_shrunk", "_since", "waiting")

    def __init__(self, *, start_distance: float = 0.0) -> None:
        self.waiting = start_distance
        self._shifted = start_distance > 0.0
        self._since, self._off = 1.0, 0.0
        # In units of the iterate after a block's last step; how much lengths shrank since the block
        # before. Slopes rise from block to block.
        self._rises: list[float] = []
        self._runs: list[float] = []
        self._shrunk: list[float] = []

    def copy(self) -> "Minorant":
        """Return an independent copy."""
        other = Minorant(start_distance=self.waiting)
        other._since, other._off, other._shifted = self._since, self._off, self._shifted
        other._rises, other._runs = list(self._rises), list(self._runs)
        other._shrunk = list(self._shrunk)
        return other

    def step(self, *, contraction: float, shift: float, noise_std: float) -> None:
        """Walk one step; its numbers are not negative, and its noise is 0 or has a normal square.

        A step without noise is allowed: its shift waits for the next noise.
        """
        self._off += _UNIT_OFF
        self._advance(contraction, shift, noise_std * noise_std)

    def steps(self, *, contraction: float, noise_std: float, count: int) -> None:
        """Walk equal steps without a shift: one step, since only the last point can bind."""
        if count == 0:
            return
        self.merged(contraction=contraction, gained=0.0, noise_std=noise_std, count=count)

    def merged(self, *, contraction: float, gained: float, noise_std: float, count: int) -> None:
        """Walk ``count`` equal noises at once, which move the worlds apart by ``gained`` in all.

        No point between their start and their end may bind: the noise is 0, or chords fall.
        """
        # The square is rounded down, so the sum is that of a chain that forgets a little more.
        total = geometric_sum(contraction * contraction * _DOWN, count)
        self._off += _POWER_OFF
        self._advance(power(contraction, count), gained, noise_std * noise_std * total * _DOWN)

    def _advance(self, contraction: float, gained: float, variance: float) -> None:
        if gained > 0.0 or (self.waiting > 0.0 and contraction > 0.0):
            self.waiting = max((contraction * self.waiting + gained) * _UP, _SMALLEST)
            self._shifted = True
        else:
            self.waiting = 0.0
        self._since *= contraction
        if variance == 0.0:
            return
        rise, run, scale = self.waiting, variance, self._since
        self.waiting, self._since = 0.0, 1.0
        rises, runs = self._rises, self._runs
        # As ratios: products might underflow to 0 on both sides, and pooling would be wrong.
        while rises and (rise == 0.0 or math.inf > rises[-1] / rise >= runs[-1] / run * scale):
            rise = (rise + rises.pop() * scale) * _UP
            run = (run + runs.pop() * scale * scale) * _DOWN
            scale *= self._shrunk.pop()
        rises.append(rise)
        runs.append(run)
        self._shrunk.append(scale)

    def mu(self) -> float:
        """Return mu, rounded up; infinite where a shift still waits for noise."""
        if self.waiting > 0.0:
            return math.inf
        if not self._shifted:
            return 0.0
        pairs = zip(self._rises, self._runs, strict=True)
        terms = ((rise + _SMALLEST) / math.sqrt(run) for rise, run in pairs)
        return math.hypot(*terms) * (1 + 1e-12 + self._off)


def power(rate: float, exponent: int) -> float:
    """Return rate**exponent for 0 <= rate <= 1, rounded up, and never below 1e-290."""
    if rate == 1 or exponent == 0:
        return 1.0
    if rate == 0:
        return 0.0
    logarithm = exponent * log_of(rate)
    return min(1.0, math.exp(max(logarithm, -667.0)) * (1 + 1e-14 - 4e-16 * max(logarithm, -700.0)))


def geometric_sum(rate: float, count: int) -> float:
    """Return 1 + rate + ... + rate**(count - 1) to about 14 digits, for 0 <= rate <= 1."""
    if rate == 1:
        return float(count)
    if rate == 0:
        return float(min(count, 1))
    return -math.expm1(count * log_of(rate)) / (1.0 - rate)


def log_of(rate: float) -> float:
    """Return log(rate) for 0 < rate < 1 without losing digits near 1."""
    return math.log1p(-(1 - rate)) if rate > 0.5 else math.log(rate)


def minorant_mu(
    *,
    start_distance: float,
    contractions: Sequence[float],
    shifts: Sequence[float],
    noise_stds: Sequence[float],
) -> float:
    """Return mu of the last iterate for any schedule, rounded up; one entry a step.

    A step without noise is allowed: its shift waits for the next noisy one. The last steps may not
    add a shift without noise to hide it.
    """
    waiting = require_non_negative("start_distance", start_distance)
    steps = len(noise_stds)
    if not steps or len(contractions) != steps or len(shifts) != steps:
        raise ParameterError("noise_stds", "as many as contractions and shifts, and at least one")
    schedule = zip(
        _checked("contractions", contractions, lowest=0.0, highest=1.0),
        _checked("shifts", shifts, lowest=0.0, highest=1e150),
        _checked("noise_stds", noise_stds, lowest=1e-140, highest=1e140),
        strict=True,
    )
    minorant = Minorant(start_distance=waiting)
    for contraction, shift, noise_std in schedule:
        minorant.step(contraction=contraction, shift=shift, noise_std=noise_std)
    if minorant.waiting > 0.0:
        raise ParameterError("noise_stds", "above 0 in the last step that has a shift")
    mu = minorant.mu()
    if not math.isfinite(mu):
        raise ParameterError("shifts", "small enough for mu to stay finite")
    return mu


def _checked(name: str, values: Sequence[float], *, lowest: float, highest: float) -> list[float]:
    """Return the values as floats; 0 is always allowed, what lies between must be normal."""
    numbers = [float(number) for number in values]
    if not all(number == 0 or lowest <= number <= highest for number in numbers):
        raise ParameterError(name, f"a list of numbers, 0 or from {lowest:g} to {highest:g}")
    return numbers
