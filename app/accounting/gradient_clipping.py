"""Gradient clipping with regularisation (Koloskova et al. 2025, equation 3).

    x0 = clip(x, initial_clip)
    x <- x - learning_rate (clip(gradient, gradient_clip) + weight_decay x) + N(0, noise_std^2 I)

Gradients come from retain data only; ``clip`` scales a vector down to a norm. Symbols of the paper:
C0 = initial_clip, C1 = gradient_clip, gamma = learning_rate, lambda = weight_decay,
sigma = noise_std, T = steps. All but C0 and T may vary by step.

x may be measured in any affine frame u = (x - centre) / scale that does not depend on the training
data; norms and noise are then those of u.

Guarantee: mu-GDP. Neighbouring relation: any two starts. Assumptions:
 1. all of the run happens in one affine frame that does not depend on the training data;
 2. parameters are fixed before the run and do not depend on the original weights;
 3. nothing but the final iterate is released.
The step map is (1 - gamma lambda)-Lipschitz plus a shift of 2 gamma C1, for any loss whatever.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.accounting import gaussian
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.noisy_chain import NoisyChain, constant_mu, one_minus_product
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import (
    require_noise,
    require_non_negative,
    require_positive,
    require_steps,
)
from app.domain.errors import ParameterError
from app.domain.schedules import Schedule, at, varies

NAME = "gradient_clipping"
VERSION = 1

TERMS = Terms(
    neighbours=Neighbours.ANY_START,
    adaptive=False,
    assumptions=enforced(
        "every gradient of the noisy steps came from retained records",
        "the reference frame does not depend on the training data",
        "all parameters were fixed before the run",
        "no earlier iterate was released or stored",
    ),
    source="Koloskova et al. 2025, eq. 3 and Theorem A.9; "
    "Bok, Su & Altschuler 2024 for the trade-off function",
)


@dataclass(frozen=True)
class StepSize:
    """The noise-free part of one step, checked once.

    Attributes:
        contraction: 1 - learning_rate * weight_decay, rounded up.
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
    if learning_rate * weight_decay >= 1:
        raise ParameterError("weight_decay", "below 1 / learning_rate")
    return StepSize(
        contraction=one_minus_product(learning_rate, weight_decay),
        shift=2.0 * learning_rate * gradient_clip,
    )


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
        """Return what the steps so far guarantee.

        Raises:
            ParameterError: no noisy step was counted yet.
        """
        return GaussianGuarantee(terms=TERMS, mu=self._chain.certified_mu())


def account(
    *,
    initial_clip: float,
    gradient_clip: Schedule,
    learning_rate: Schedule,
    weight_decay: Schedule,
    noise_std: Schedule,
    steps: int,
) -> GaussianGuarantee:
    """Return the guarantee of ``steps`` steps; each schedule is one number or one per step.

    Raises:
        ParameterError: a parameter is out of its range, or a schedule has the wrong length.
    """
    initial_clip = require_positive("initial_clip", initial_clip)
    steps = require_steps("steps", steps)
    if not any(map(varies, (gradient_clip, learning_rate, weight_decay, noise_std))):
        size = step_size(
            gradient_clip=at(gradient_clip, 0),
            learning_rate=at(learning_rate, 0),
            weight_decay=at(weight_decay, 0),
        )
        mu = constant_mu(
            start_distance=2 * initial_clip,
            contraction=size.contraction,
            shift=size.shift,
            noise_std=at(noise_std, 0),
            steps=steps,
        )
        return GaussianGuarantee(terms=TERMS, mu=mu)
    for name, schedule in (
        ("gradient_clip", gradient_clip),
        ("learning_rate", learning_rate),
        ("weight_decay", weight_decay),
        ("noise_std", noise_std),
    ):
        if varies(schedule) and not (isinstance(schedule, Sequence) and len(schedule) == steps):
            raise ParameterError(name, f"one number or {steps} of them, one per step")
    odometer = Odometer(initial_clip=initial_clip)
    for step in range(steps):
        size = step_size(
            gradient_clip=at(gradient_clip, step),
            learning_rate=at(learning_rate, step),
            weight_decay=at(weight_decay, step),
        )
        odometer.step(size, require_noise("noise_std", at(noise_std, step)))
    return odometer.guarantee()


def calibrate(
    *,
    epsilon: float,
    delta: float,
    initial_clip: float,
    gradient_clip: Schedule,
    learning_rate: Schedule,
    weight_decay: Schedule,
    steps: int,
) -> float:
    """Return the smallest constant noise_std that reaches (epsilon, delta), rounded up.

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
    # The margin covers the rounding of an odometer that walks the same steps.
    return math.nextafter(unit.mu / target * (1 + 1e-13 + 4e-15 * steps), math.inf)
