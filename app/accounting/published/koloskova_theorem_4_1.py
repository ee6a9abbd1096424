"""Koloskova et al. 2025, Theorem 4.1: gradient clipping in closed form.

    lambda = 0:             sigma^2 = 9 log(1/delta)/(eps^2 T) (C0 + C1 gamma T)^2
    1/2 < gamma lambda < 1: sigma^2 = 72 gamma lambda log(1/delta)/eps^2 (C0 (1 - gamma lambda)^T
                                      + C1/lambda)^2

The theorem is stated for eps < 3 log(1/delta). Its first case does not hold that far: the noise
gives mu = 2 eps/(3 sqrt(log(1/delta))), whose true epsilon exceeds eps from 0.95 log(1/delta) on at
delta = 1e-5, from 0.55 at 1e-15, and from 0.257 as delta goes to 0. Mironov's conversion proves it
up to 0.257 log(1/delta) for every delta, the limit here. The second case gives
mu <= eps/(3 sqrt(log(1/delta))) and holds as stated.

Guarantee: one point (epsilon, delta). Neighbouring relation: any two starts. Assumptions: as
``gradient_clipping``.
"""

import math
from dataclasses import dataclass, replace

from app.accounting import gradient_clipping
from app.accounting.published.bound import SolvedBound, functions_of
from app.domain.checks import (
    require_delta,
    require_noise,
    require_non_negative,
    require_positive,
    require_steps,
)
from app.domain.errors import ParameterError

NAME = "koloskova_theorem_4_1"
VERSION = 1
TERMS = replace(
    gradient_clipping.TERMS,
    source="Koloskova et al. 2025, Theorem 4.1, its first case up to eps = 0.257 log(1/delta)",
)
UNREGULARISED_LIMIT = 0.257
REGULARISED_LIMIT = 3.0


@dataclass(frozen=True, kw_only=True)
class Parameters(SolvedBound):
    """The parameters of ``gradient_clipping``, each constant, and delta."""

    TERMS = TERMS

    initial_clip: float
    gradient_clip: float
    learning_rate: float
    weight_decay: float
    steps: int

    def epsilon(self) -> float:
        """Return the theorem's epsilon, rounded up."""
        return self._product() / require_noise("noise_std", self.noise_std) * (1 + 1e-13)

    def noise(self, *, epsilon: float) -> float:
        """Return the theorem's noise_std, rounded up."""
        return self._product() / epsilon * (1 + 2e-13)

    def check_range(self, epsilon: float) -> None:
        """Refuse an epsilon at which the theorem does not hold."""
        limit = UNREGULARISED_LIMIT if self.weight_decay == 0 else REGULARISED_LIMIT
        highest = -limit * math.log(self.delta)
        if epsilon >= highest:
            raise ParameterError("epsilon", f"below {limit} log(1/delta) = {highest:g}")

    def _product(self) -> float:
        """Return epsilon times sigma."""
        root = math.sqrt(-math.log(require_delta(self.delta)))
        start = require_positive("initial_clip", self.initial_clip)
        clip = require_non_negative("gradient_clip", self.gradient_clip)
        rate = require_positive("learning_rate", self.learning_rate)
        decay = rate * require_non_negative("weight_decay", self.weight_decay)
        steps = require_steps("steps", self.steps)
        if decay == 0:
            return 3 * root / math.sqrt(steps) * (start + clip * rate * steps)
        if not 0.5 < decay < 1:
            raise ParameterError("weight_decay", "0, or between 0.5 and 1 times 1 / learning_rate")
        left = start * (1 - decay) ** steps + clip / self.weight_decay
        return math.sqrt(72 * decay) * root * left


account, calibrate = functions_of(Parameters)
