"""The steps of a noisy chain, and what the reflection coupling can at best make of them."""

import math
from dataclasses import dataclass
from typing import Final

from app.accounting import gaussian
from app.domain.checks import require_noise, require_non_negative

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
