"""Default parameters of gradient clipping where the reflection coupling allows larger gradients.

By the running minimum, gradients may move the end of a run by half of mu, in units of its noise.
Where steps contract more, the worlds meet instead, and at the same final noise the gradients may be
several times larger.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from app.accounting import gradient_clipping
from app.accounting.chains.reflection import SEARCH_CELLS
from app.accounting.search import smallest_noise_by_secant
from app.domain.errors import CalibrationError, ParameterError

# Slower contractions remember more gradients, so the slowest that works is taken.
_CONTRACTIONS = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
# Twice the reach is more than the running minimum ever allows.
_LEAST_GAIN, _LARGEST_GAIN = 2.0, 64.0
_WIDTH = 0.01


@dataclass(frozen=True)
class CoupledParameters:
    """A run whose released noise has the given standard deviation; noise is per step."""

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

    Reach is how far all shifts together may move two worlds apart by the running minimum;
    ``final_noise_std`` is of the noise in one released coordinate.
    """

    def excess(contraction: float, shift: float, noise_std: float) -> float:
        """Return how far delta is beyond the target: not above 0 where the target is met."""
        try:
            guarantee = gradient_clipping.account(
                initial_clip=initial_clip,
                gradient_clip=shift / 2,
                learning_rate=1.0,
                weight_decay=1 - contraction,
                noise_std=noise_std,
                steps=steps,
                dimension=dimension,
                cells=SEARCH_CELLS,
            )
            return gradient_clipping.excess_of(guarantee.delta(epsilon=epsilon), delta)
        except (CalibrationError, ParameterError):
            return math.inf

    for contraction in _CONTRACTIONS:
        share = (1 - contraction) / (1 - contraction**steps)
        share_of_variance = (1 - contraction**2) / (1 - contraction ** (2 * steps))
        noise_std = final_noise_std * math.sqrt(share_of_variance)
        low = _LEAST_GAIN * least_reach * share
        if excess(contraction, low, noise_std) > 0:
            continue
        high = low * _LARGEST_GAIN / _LEAST_GAIN
        # The largest shift is the smallest noise where noise is measured in shifts.
        inverse = smallest_noise_by_secant(
            lambda each, c=contraction, std=noise_std, high=high: (  # type: ignore[misc]
                excess(c, 1 / each, std) if each * high > 1 else math.inf
            ),
            scale=1 / low,
            relative_width=_WIDTH,
        )
        return CoupledParameters(contraction, 1 / inverse, noise_std)
    return None
