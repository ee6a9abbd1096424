"""Gradient clipping with regularisation (Koloskova et al. 2025, equation 3).

    x0 = clip(x, initial_clip)
    x <- x - learning_rate (clip(gradient, gradient_clip) + weight_decay x) + N(0, noise_std^2 I)

Gradients come from retain data only; ``clip`` scales a vector down to a norm. Symbols of the paper:
C0 = initial_clip, C1 = gradient_clip, gamma = learning_rate, lambda = weight_decay,
sigma = noise_std, T = steps.

Guarantee: mu-GDP. Neighbouring relation: any two starts. Assumptions:
 1. all of the run happens in one affine frame that does not depend on the training data;
 2. parameters are fixed before the run and do not depend on the original weights;
 3. nothing but the final iterate is released.
The step map is (1 - gamma lambda)-Lipschitz plus a shift of 2 gamma C1, for any loss whatever.
"""

import math
from dataclasses import dataclass

from app.accounting import gaussian
from app.accounting.guarantees import Assumption, GaussianGuarantee, Neighbours, Support, Terms
from app.accounting.noisy_chain import NoisyChain
from app.domain.checks import (
    require_non_negative,
    require_positive,
    require_steps,
)
from app.domain.errors import ParameterError

NAME = "gradient_clipping"
VERSION = 1

TERMS = Terms(
    neighbours=Neighbours.ANY_START,
    adaptive=False,
    assumptions=(
        Assumption(
            "every gradient of the noisy steps came from retained records", Support.ENFORCED
        ),
        Assumption("the reference frame does not depend on the training data", Support.ENFORCED),
        Assumption("all parameters were fixed before the run", Support.ENFORCED),
        Assumption("no earlier iterate was released or stored", Support.ENFORCED),
    ),
    source="Koloskova et al. 2025, eq. 3 and Theorem A.9; "
    "Bok, Su & Altschuler 2024 for the trade-off function",
)


@dataclass(frozen=True)
class StepSize:
    """The noise-free part of one step, checked once.

    Attributes:
        contraction: 1 - learning_rate * weight_decay.
        shift: 2 * learning_rate * gradient_clip.
    """

    contraction: float
    shift: float


def step_size(*, gradient_clip: float, learning_rate: float, weight_decay: float) -> StepSize:
    """Return contraction and shift of one step.

    Raises:
        ParameterError: a number is out of range, or learning_rate * weight_decay >= 1.
    """
    gradient_clip = require_non_negative("gradient_clip", gradient_clip)
    learning_rate = require_positive("learning_rate", learning_rate)
    weight_decay = require_non_negative("weight_decay", weight_decay)
    decay = learning_rate * weight_decay
    if decay >= 1:
        raise ParameterError("weight_decay", "below 1 / learning_rate")
    return StepSize(contraction=1.0 - decay, shift=2.0 * learning_rate * gradient_clip)


class Odometer:
    """Counts the steps that were actually taken and says what they are worth.

    Args:
        initial_clip: C0, the norm to which the start was clipped.
    """

    def __init__(self, *, initial_clip: float) -> None:
        self._chain = NoisyChain(start_distance=2 * require_positive("initial_clip", initial_clip))

    def step(self, size: StepSize, noise_std: float) -> float:
        """Count one step and return mu so far."""
        return self._chain.step(size.contraction, size.shift, noise_std)

    @property
    def steps(self) -> int:
        """How many steps were counted."""
        return self._chain.steps

    @property
    def mu(self) -> float:
        """The guarantee so far, infinite before the first step."""
        return self._chain.mu

    def guarantee(self) -> GaussianGuarantee:
        """Return what the steps so far guarantee."""
        return GaussianGuarantee(terms=TERMS, mu=self._chain.mu)


def account(
    *,
    initial_clip: float,
    gradient_clip: float,
    learning_rate: float,
    weight_decay: float,
    noise_std: float,
    steps: int,
) -> GaussianGuarantee:
    """Return the guarantee of ``steps`` equal steps.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    size = step_size(
        gradient_clip=gradient_clip, learning_rate=learning_rate, weight_decay=weight_decay
    )
    noise_std = require_positive("noise_std", noise_std)
    odometer = Odometer(initial_clip=initial_clip)
    for _ in range(require_steps("steps", steps)):
        odometer.step(size, noise_std)
    return odometer.guarantee()


def calibrate(
    *,
    epsilon: float,
    delta: float,
    initial_clip: float,
    gradient_clip: float,
    learning_rate: float,
    weight_decay: float,
    steps: int,
) -> float:
    """Return the smallest noise_std that reaches (epsilon, delta) in ``steps`` steps, rounded up.

    mu is inversely proportional to the noise, so this is one accounting run at noise_std = 1.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: the conversion of the target did not converge.
    """
    target = gaussian.mu_of(epsilon=epsilon, delta=delta)
    unit = account(
        initial_clip=initial_clip,
        gradient_clip=gradient_clip,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        noise_std=1.0,
        steps=steps,
    )
    # The margin covers the odometer's own rounding, which grows with the number of steps.
    noise_std = unit.mu / target * (1 + 1e-12 + 4e-16 * steps)
    return math.nextafter(noise_std, math.inf)
