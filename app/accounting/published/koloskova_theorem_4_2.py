"""Koloskova et al. 2025, Theorem 4.2: model clipping with a constant contraction coefficient.

    delta_T = theta_eps(2 C0/sigma0) theta_eps(2 C2/sigma)^T

which keeps eps where ``model_clipping`` may use the larger eps_t, and needs 3 to 4 times the steps.

Guarantee: one point (epsilon, delta). Neighbouring relation: any two starts. Assumptions: as
``model_clipping``.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from app.accounting import gaussian, model_clipping
from app.accounting.guarantees import PointGuarantee
from app.accounting.published.bound import SearchedBound, functions_of
from app.domain.checks import (
    require_delta,
    require_noise,
    require_non_negative,
    require_positive,
    require_steps,
)
from app.domain.errors import CalibrationError

NAME = "koloskova_theorem_4_2"
VERSION = 1
TERMS = replace(model_clipping.TERMS, source="Koloskova et al. 2025, Theorem 4.2")


@dataclass(frozen=True, kw_only=True)
class Parameters(SearchedBound[PointGuarantee]):
    """The parameters of ``model_clipping``."""

    epsilon: float
    initial_clip: float
    model_clip: float
    noise_std: float
    steps: int
    initial_noise_std: float = 0.0

    def guarantee(self) -> PointGuarantee:
        """Return the point (epsilon, delta_T)."""
        start, factor = self.logs()
        log_delta = start + require_steps("steps", self.steps) * factor
        delta = min(1.0, math.exp(max(log_delta, -700.0)) * (1 + 1e-12))
        return PointGuarantee(terms=TERMS, at_epsilon=float(self.epsilon), at_delta=delta)

    def first_guess(self, *, epsilon: float, delta: float) -> float:  # noqa: ARG002
        """Return C2."""
        return require_positive("model_clip", self.model_clip)

    def logs(self) -> tuple[float, float]:
        """Return log delta_0 and log theta, both rounded up."""
        epsilon = require_positive("epsilon", self.epsilon)
        radius = require_positive("initial_clip", self.initial_clip)
        separation = 2 * require_positive("model_clip", self.model_clip)
        separation /= require_noise("noise_std", self.noise_std)
        start = 0.0
        if require_non_negative("initial_noise_std", self.initial_noise_std) > 0:
            noise = require_noise("initial_noise_std", self.initial_noise_std)
            start = gaussian.rounded_log_delta(mu=2 * radius / noise, epsilon=epsilon)
        return start, gaussian.rounded_log_delta(mu=separation * (1 + 1e-15), epsilon=epsilon)


account, calibrate = functions_of(Parameters)


def steps_needed(*, delta: float, **setting: Any) -> int:  # noqa: ANN401
    """Return the theorem's number of steps (its equation 10) for the other ``Parameters``.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: the noise is too small for any number of steps.
    """
    start, factor = Parameters(**setting, steps=1).logs()
    if factor >= 0:
        raise CalibrationError("model clipping does not reach delta with this little noise")
    return max(1, math.ceil((math.log(require_delta(delta)) - start) / factor * (1 + 1e-12)))
