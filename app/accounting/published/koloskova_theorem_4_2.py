"""Koloskova et al. 2025, Theorem 4.2: model clipping with a constant contraction coefficient.

    delta_T = theta_eps(2 C0/sigma0) theta_eps(2 C2/sigma)^T

which keeps eps where ``model_clipping`` may use the larger eps_t, and needs 3 to 4 times the steps.

Guarantee: one point (epsilon, delta). Neighbouring relation: any two starts. Assumptions: as
``model_clipping``.
"""

import math

from app.accounting import gaussian, model_clipping
from app.accounting.guarantees import PointGuarantee
from app.accounting.search import smallest_noise
from app.accounting.terms import Terms
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
TERMS = Terms(
    neighbours=model_clipping.TERMS.neighbours,
    adaptive=False,
    assumptions=model_clipping.TERMS.assumptions,
    source="Koloskova et al. 2025, Theorem 4.2",
)


def account(
    *,
    epsilon: float,
    initial_clip: float,
    model_clip: float,
    noise_std: float,
    steps: int,
    initial_noise_std: float = 0.0,
) -> PointGuarantee:
    """Return the point (epsilon, delta_T).

    Raises:
        ParameterError: a parameter is out of its range.
    """
    start, factor = _logs(epsilon, initial_clip, model_clip, noise_std, initial_noise_std)
    log_delta = start + require_steps("steps", steps) * factor
    delta = min(1.0, math.exp(max(log_delta, -700.0)) * (1 + 1e-12))
    return PointGuarantee(terms=TERMS, at_epsilon=float(epsilon), at_delta=delta)


def steps_needed(
    *,
    epsilon: float,
    delta: float,
    initial_clip: float,
    model_clip: float,
    noise_std: float,
    initial_noise_std: float = 0.0,
) -> int:
    """Return the theorem's number of steps (its equation 10).

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: the noise is too small for any number of steps.
    """
    start, factor = _logs(epsilon, initial_clip, model_clip, noise_std, initial_noise_std)
    if factor >= 0:
        raise CalibrationError("model clipping does not reach delta with this little noise")
    return max(1, math.ceil((math.log(require_delta(delta)) - start) / factor * (1 + 1e-12)))


def calibrate(
    *,
    epsilon: float,
    delta: float,
    initial_clip: float,
    model_clip: float,
    steps: int,
    initial_noise_std: float = 0.0,
) -> float:
    """Return the smallest noise_std that reaches (epsilon, delta) in ``steps`` steps, rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: no noise of reasonable size reaches the target.
    """

    def meets(noise_std: float) -> bool:
        guarantee = account(
            epsilon=epsilon,
            initial_clip=initial_clip,
            model_clip=model_clip,
            noise_std=noise_std,
            steps=steps,
            initial_noise_std=initial_noise_std,
        )
        return guarantee.at_delta <= require_delta(delta)

    return smallest_noise(meets, scale=require_positive("model_clip", model_clip))


def _logs(
    epsilon: float,
    initial_clip: float,
    model_clip: float,
    noise_std: float,
    initial_noise_std: float,
) -> tuple[float, float]:
    """Return log delta_0 and log theta, both rounded up."""
    epsilon = require_positive("epsilon", epsilon)
    radius = require_positive("initial_clip", initial_clip)
    separation = 2 * require_positive("model_clip", model_clip)
    separation /= require_noise("noise_std", noise_std)
    start = 0.0
    if require_non_negative("initial_noise_std", initial_noise_std) > 0:
        noise = require_noise("initial_noise_std", initial_noise_std)
        start = gaussian.rounded_log_delta(mu=2 * radius / noise, epsilon=epsilon)
    return start, gaussian.rounded_log_delta(mu=separation * (1 + 1e-15), epsilon=epsilon)
