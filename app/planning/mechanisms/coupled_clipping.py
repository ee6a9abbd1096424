"""Default parameters of gradient clipping where the reflection coupling allows larger gradients.

By the running minimum, gradients may move the end of a run by half of mu, in units of its noise.
Where steps contract more, the worlds meet instead, and at the same final noise the gradients may be
several times larger.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from app.accounting import gradient_clipping
from app.domain.errors import CalibrationError, ParameterError

# Slower contractions remember more gradients, so the slowest that works is taken.
_CONTRACTIONS = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
# Twice the reach is more than the running minimum ever allows.
_LEAST_GAIN, _LARGEST_GAIN = 2.0, 64.0
_WIDTH = 1.01


@dataclass(frozen=True)
class CoupledParameters:
    """A run whose released noise has the given standard deviation.

    Attributes:
        contraction: of every step.
        shift: how far a step's gradients may push two worlds apart.
        noise_std: of a step, per coordinate.
    """

    contraction: float
    shift: float
    noise_std: float


@lru_cache(maxsize=256)
def coupled_parameters(
    *,
    epsilon: float,
    delta: float,
    initial_clip: float,
    steps: int,
    final_noise_std: float,
    least_reach: float,
    dimension: int | None,
) -> CoupledParameters | None:
    """Return parameters whose gradients reach twice as far as ``least_reach`` or more, or None.

    Args:
        epsilon: of the target.
        delta: of the target.
        initial_clip: norm of the start.
        steps: of the run.
        final_noise_std: of the noise in one released coordinate.
        least_reach: how far all shifts together may move two worlds apart by the running minimum.
        dimension: of a position, if known.
    """

    def meets(contraction: float, shift: float, noise_std: float) -> bool:
        try:
            guarantee = gradient_clipping.account(
                initial_clip=initial_clip,
                gradient_clip=shift / 2,
                learning_rate=1.0,
                weight_decay=1 - contraction,
                noise_std=noise_std,
                steps=steps,
                dimension=dimension,
            )
            return guarantee.meets(epsilon=epsilon, delta=delta)
        except (CalibrationError, ParameterError):
            return False

    for contraction in _CONTRACTIONS:
        share = (1 - contraction) / (1 - contraction**steps)
        share_of_variance = (1 - contraction**2) / (1 - contraction ** (2 * steps))
        noise_std = final_noise_std * math.sqrt(share_of_variance)
        low = _LEAST_GAIN * least_reach * share
        if not meets(contraction, low, noise_std):
            continue
        high = low * _LARGEST_GAIN / _LEAST_GAIN
        while high > low * _WIDTH:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if meets(contraction, middle, noise_std) else (low, middle)
        return CoupledParameters(contraction, low, noise_std)
    return None
