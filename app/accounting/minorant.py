"""The greatest convex minorant of docs/guarantees.md, Theorem 4, built as steps are walked.

    |Psi_t(x) - Psi'_t(y)| <= contraction_t |x - y| + shift_t, noise of noise_std_t in both worlds

With P_k the product of the contractions up to k, V_k = sum_j noise_std_j^2 / P_j^2 and
S_k = start_distance + sum_j shift_j / P_j, the best bound on the last iterate is

    mu^2 = sum over the segments of (dS)^2 / dV

of the greatest convex minorant of (0, 0), (V_k, S_k). Steps are pooled until slopes no longer fall.
A block holds its rise, its run and its own unit of length P, so nothing over- or underflows.
"""

import math
from collections.abc import Iterator
from typing import Final

# Outweighs the roundings of one step; of a power; of what a rise may lose to underflow.
_UP: Final = 1.0 + 2.0**-49
_DOWN: Final = 1.0 - 2.0**-49
_SMALLEST: Final = 1e-300


class Minorant:
    """The steps of a chain, as far as the two worlds' last iterates depend on them.

    Args:
        start_distance: how far apart the worlds may be at the start.

    Attributes:
        waiting: the shift that no noise has followed yet, in units of the present iterate.
    """

    __slots__ = ("_rises", "_runs", "_shifted", "_shrunk", "_since", "waiting")

    def __init__(self, *, start_distance: float = 0.0) -> None:
        self.waiting = start_distance
        self._shifted = start_distance > 0.0
        self._since = 1.0
        # In units of the iterate after a block's last step; how much lengths shrank since the block
        # before. Slopes rise from block to block.
        self._rises: list[float] = []
        self._runs: list[float] = []
        self._shrunk: list[float] = []

    def copy(self) -> "Minorant":
        """Return an independent copy."""
        other = Minorant(start_distance=self.waiting)
        other._since, other._shifted = self._since, self._shifted
        other._rises, other._runs = list(self._rises), list(self._runs)
        other._shrunk = list(self._shrunk)
        return other

    def step(self, *, contraction: float, shift: float, noise_std: float) -> None:
        """Walk one step; its numbers are not negative, and its noise is 0 or has a normal square.

        A step without noise is allowed: its shift waits for the next noise.
        """
        self._advance(contraction, contraction * self.waiting + shift, noise_std * noise_std)

    def steps(self, *, contraction: float, noise_std: float, count: int) -> None:
        """Walk ``count`` equal steps without a shift, in closed form.

        They are one step: where the distance S does not grow, no point but the last one binds.
        """
        if count == 0:
            return
        kept = power(contraction, count)
        total = geometric_sum(contraction * contraction * _DOWN, count)
        waiting = kept * self.waiting * _UP
        self._advance(kept, waiting, noise_std * noise_std * total * _DOWN)

    def merged(self, *, contraction: float, gained: float, variance: float = 0.0) -> None:
        """Walk steps that scale distances, add to them and leave noise of some variance.

        No point between their start and their end may bind: there is no noise, or chords fall.
        """
        self._advance(contraction, contraction * self.waiting + gained, variance)

    def _advance(self, contraction: float, waiting: float, variance: float) -> None:
        self.waiting = waiting * _UP
        self._shifted = self._shifted or waiting > 0.0
        self._since *= contraction
        if variance == 0.0:
            return
        rise, run, scale = self.waiting, variance, self._since
        self.waiting, self._since = 0.0, 1.0
        rises, runs = self._rises, self._runs
        while rises and rises[-1] * run >= rise * scale * runs[-1]:
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
        return math.hypot(*self._terms()) * (1 + 1e-12)

    def _terms(self) -> Iterator[float]:
        for rise, run in zip(self._rises, self._runs, strict=True):
            yield (rise + _SMALLEST) / math.sqrt(run)


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
