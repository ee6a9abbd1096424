"""Chourasia & Shah 2023, Theorem 5.1 (G.9 and G.15): noisy gradient descent, convex losses.

    deletion:          eps_dd(q) = (4 q M^2/(lambda sigma^2 n^2)) exp(-lambda eta K/2)
    present records:   eps_dp(q) = (4 q M^2/(lambda sigma^2 n^2)) (1 - exp(-lambda eta K/2))

for eta <= 1/(2 (lambda + beta)), noise of variance 2 eta sigma^2 and a start drawn from
N(0, sigma^2/(lambda (1 - eta lambda/2)) I). The theorem speaks of one record at a time; for r
records forgotten together M grows to r M, since the gradients differ by at most 2 r M/n.

Guarantee: Renyi curve. Neighbouring relation: replacement. Assumptions: 1. as in
``strong_convexity``, with the smaller step size; 2. the start above; 3. only the final iterate of
a run is released. ``noisy_gd_convex`` certifies the same process with less than half of this.
"""

import math
from dataclasses import dataclass
from typing import Any

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import full_batch
from app.accounting.published.bound import functions_of, proportional
from app.domain.checks import require_count, require_positive, require_steps
from app.domain.errors import ParameterError

NAME = "chourasia_theorem_5_1"
VERSION = 1
TERMS = full_batch.terms(
    "Chourasia & Shah 2023, Theorem 5.1 (G.9, G.15)",
    "the step size is at most 1 / (2 (smoothness + weight_decay))",
    "training started from N(0, sigma^2/(lambda (1 - eta lambda/2)) I)",
)


@dataclass(frozen=True, kw_only=True)
class Setting(full_batch.Setting):
    """The constants, with the smaller step size that the theorem asks for."""

    def factor(self) -> float:
        """Return 4 (r M)^2 / (lambda sigma^2 n^2)."""
        rate = require_positive("learning_rate", self.learning_rate)
        decay = require_positive("weight_decay", self.weight_decay)
        if rate * 2 * (require_positive("smoothness", self.smoothness) + decay) > 1 + 1e-12:
            raise ParameterError("learning_rate", "at most 1 / (2 (smoothness + weight_decay))")
        return super().factor()


@dataclass(frozen=True, kw_only=True)
class Parameters(Setting, full_batch.Theorem):
    """The constants and K = ``unlearning_steps``, after training of any length."""

    unlearning_steps: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the deletion guarantee."""
        factor, steps = self.factor(), require_count("unlearning_steps", self.unlearning_steps)
        exponent = self.weight_decay * self.learning_rate * steps / 2 * (1 - 1e-14)
        return proportional(TERMS, factor * math.exp(-min(exponent, 650.0)) * (1 + 1e-12))


account, calibrate = functions_of(Parameters)


def account_present(*, steps: int, group: int = 1, **setting: Any) -> RenyiGuarantee:  # noqa: ANN401
    """Return the privacy of ``group`` records still present after ``steps`` steps of ``Setting``.

    Raises:
        ParameterError: a parameter is out of its range, or the step size above its bound.
    """
    given = Setting(**setting, forgotten=group)
    factor = given.factor()
    exponent = given.weight_decay * given.learning_rate * require_steps("steps", steps) / 2
    return proportional(TERMS, factor * -math.expm1(-exponent) * (1 + 1e-12))


def steps_needed(*, order: float, divergence: float, **setting: Any) -> int:  # noqa: ANN401
    """Return K >= (2/(lambda eta)) log(4 q M^2/(lambda e sigma^2 n^2)) for divergence e at order q.

    Raises:
        ParameterError: a parameter is out of its range, or the step size above its bound.
    """
    given = Setting(**setting)
    ratio = require_positive("order", order) * given.factor()
    ratio /= require_positive("divergence", divergence)
    if ratio <= 1:
        return 0
    pace = given.weight_decay * given.learning_rate
    return math.ceil(2 / pace * math.log(ratio) * (1 + 1e-12))
