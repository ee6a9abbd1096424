"""DP-SGD with generic group privacy, as Koloskova et al. 2025, section 5.3, use it.

(eps_1, delta_1) for one record gives (k eps_1, k e^{(k-1) eps_1} delta_1) for k of them (Vadhan
2017, Lemma 2.2; the paper prints k e^{k eps_1} delta_1, a little larger). The guarantee for one
record is ``dp_sgd``'s. ``dp_sgd`` itself, with its mixture of Gaussians, is tight.

Guarantee: one point (epsilon, delta). Neighbouring relation: add_remove. Assumptions: as
``dp_sgd``.
"""

import math

from app.accounting import dp_sgd, gaussian
from app.accounting.guarantees import PointGuarantee
from app.accounting.search import smallest_noise
from app.accounting.terms import Terms
from app.domain.checks import require_delta, require_positive, require_steps
from app.domain.errors import CalibrationError

NAME = "dp_sgd_group_privacy"
VERSION = 1
TERMS = Terms(
    neighbours=dp_sgd.TERMS.neighbours,
    adaptive=False,
    assumptions=dp_sgd.TERMS.assumptions,
    source="Koloskova et al. 2025, section 5.3; Vadhan 2017, Lemma 2.2",
)
_SMALLEST_LOG_DELTA = math.log(dp_sgd.SMALLEST_DELTA)


def account(
    *, delta: float, noise_multiplier: float, sampling_rate: float, steps: int, group_size: int
) -> PointGuarantee:
    """Return the best epsilon that generic group privacy gives at ``delta``.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: no delta_1 above 1e-10 is small enough.
    """
    delta = require_delta(delta)
    group = require_steps("group_size", group_size)
    single = dp_sgd.account(
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        group_size=1,
    )

    def excess(log_delta: float) -> float:
        epsilon = single.epsilon(delta=math.exp(log_delta))
        return math.log(group) + (group - 1) * epsilon + log_delta - math.log(delta)

    high = low = math.log(delta)
    while not excess(low) <= 0:
        high, low = low, low - 1
        if low <= _SMALLEST_LOG_DELTA:
            raise CalibrationError("generic group privacy needs a delta_1 below 1e-10")
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    # Every low passed the test above, so the pair is a valid one whatever the curve's shape.
    epsilon = group * single.epsilon(delta=math.exp(low)) * (1 + 1e-15)
    return PointGuarantee(terms=TERMS, at_epsilon=epsilon, at_delta=delta)


def calibrate(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int, group_size: int
) -> float:
    """Return the smallest noise multiplier that reaches (epsilon, delta), rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: no noise of reasonable size meets the target.
    """
    epsilon = require_positive("epsilon", epsilon)

    def meets(noise_multiplier: float) -> bool:
        try:
            guarantee = account(
                delta=delta,
                noise_multiplier=noise_multiplier,
                sampling_rate=sampling_rate,
                steps=steps,
                group_size=group_size,
            )
        except CalibrationError:
            return False
        return guarantee.at_epsilon <= epsilon

    scale = sampling_rate * group_size * math.sqrt(require_steps("steps", steps))
    scale = max(0.5, 2 * scale / gaussian.mu_of(epsilon=epsilon, delta=delta))
    return smallest_noise(meets, scale=scale, relative_width=1e-3)
