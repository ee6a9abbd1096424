"""Model clipping (Koloskova et al. 2025, equation 4).

    x0 = clip(x, initial_clip) + N(0, initial_noise_std^2 I)      (no noise is allowed)
    x <- clip(x - learning_rate (gradient + weight_decay x), model_clip) + N(0, noise_std^2 I)

Symbols of the paper: C0 = initial_clip, C2 = model_clip, sigma0 = initial_noise_std,
sigma = noise_std, T = steps. With theta_eps(r) the hockey-stick divergence of two Gaussians r
standard deviations apart (``gaussian.log_delta``):

    delta_0     = theta_eps(2 C0 / sigma0), or 1 without initial noise
    eps_t       = log(1 + (e^eps - 1) / delta_t)
    delta_{t+1} = delta_t * theta_{eps_t}(2 C2 / sigma)

The step is (theta, eps_t)-Dobrushin whatever the gradients are (Balle, Barthe, Gaboardi & Geumlek
2019, Theorem 1). The paper's Theorem 4.2 keeps eps in place of eps_t, which is weaker.

Guarantee: one point (epsilon, delta). Neighbouring relation: any two starts. Assumptions:
 1. the frame in which norms are taken does not depend on the training data;
 2. parameters are fixed before the run and do not depend on the original weights;
 3. nothing but the final iterate is released.
"""

import math

import scipy  # its parts load when they are first used, which takes long

from app.accounting import gaussian
from app.accounting.guarantees import PointGuarantee
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import (
    require_delta,
    require_noise,
    require_non_negative,
    require_positive,
    require_steps,
)
from app.domain.errors import CalibrationError, ParameterError

NAME = "model_clipping"
VERSION = 1
MOST_STEPS = 1_000_000

TERMS = Terms(
    neighbours=Neighbours.ANY_START,
    adaptive=False,
    assumptions=enforced(
        "every gradient of the noisy steps came from retained records",
        "the reference frame does not depend on the training data",
        "all parameters were fixed before the run",
        "no earlier iterate was released or stored",
    ),
    source="Koloskova et al. 2025, eq. 4; Balle et al. 2019, Theorem 1",
)


class Odometer:
    """Counts the steps that were actually taken and says what they are worth at one epsilon.

    Attributes:
        log_delta: log delta so far, rounded up.
        steps: how many steps were counted.
    """

    __slots__ = ("_epsilon", "_log_growth", "log_delta", "steps")

    def __init__(
        self, *, epsilon: float, initial_clip: float, initial_noise_std: float = 0.0
    ) -> None:
        self._epsilon = require_positive("epsilon", epsilon)
        # log(e^epsilon - 1), for any epsilon without overflow.
        self._log_growth = epsilon + math.log(-math.expm1(-epsilon))
        radius = require_positive("initial_clip", initial_clip)
        self.steps = 0
        self.log_delta = 0.0
        if require_non_negative("initial_noise_std", initial_noise_std) > 0:
            noise = require_noise("initial_noise_std", initial_noise_std)
            self.log_delta = gaussian.rounded_log_delta(mu=2 * radius / noise, epsilon=epsilon)

    def step(self, separation: float) -> float:
        """Count one step with 2 model_clip / noise_std = ``separation``; return log delta."""
        excess = self._log_growth - self.log_delta
        amplified = (
            excess + math.log1p(math.exp(-excess)) if excess > 0 else math.log1p(math.exp(excess))
        )
        # Rounded down: a smaller epsilon_t gives a larger delta.
        amplified *= 1 - 1e-14
        factor = gaussian.rounded_log_delta(mu=separation, epsilon=amplified)
        self.log_delta = min(0.0, (self.log_delta + factor) * (1 - 1e-15))
        self.steps += 1
        return self.log_delta

    def guarantee(self) -> PointGuarantee:
        """Return what the steps so far guarantee."""
        delta = min(1.0, math.exp(max(self.log_delta, -700.0)) * (1 + 2e-13))
        return PointGuarantee(terms=TERMS, at_epsilon=self._epsilon, at_delta=delta)


def account(
    *,
    epsilon: float,
    initial_clip: float,
    model_clip: float,
    noise_std: float,
    steps: int,
    initial_noise_std: float = 0.0,
) -> PointGuarantee:
    """Return the point (epsilon, delta) that ``steps`` equal steps give at ``epsilon``.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    odometer = Odometer(
        epsilon=epsilon, initial_clip=initial_clip, initial_noise_std=initial_noise_std
    )
    separation = separation_of(model_clip, noise_std)
    for _ in range(require_steps("steps", steps)):
        odometer.step(separation)
    return odometer.guarantee()


def steps_needed(
    *,
    epsilon: float,
    delta: float,
    initial_clip: float,
    model_clip: float,
    noise_std: float,
    initial_noise_std: float = 0.0,
) -> int:
    """Return the first number of steps at which delta_t <= delta.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: more than a million steps are needed.
    """
    target = math.log(require_delta(delta))
    odometer = Odometer(
        epsilon=epsilon, initial_clip=initial_clip, initial_noise_std=initial_noise_std
    )
    separation = separation_of(model_clip, noise_std)
    for _ in range(MOST_STEPS):
        before = odometer.log_delta
        if odometer.step(separation) <= target and odometer.guarantee().at_delta <= delta:
            return odometer.steps
        if odometer.log_delta >= before - 1e-12 and odometer.steps > 1000:
            break
    raise CalibrationError("model clipping does not reach delta within a million steps")


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
        CalibrationError: the search did not converge.
    """
    target = math.log(require_delta(delta))
    model_clip = require_positive("model_clip", model_clip)
    steps = require_steps("steps", steps)

    def excess(log_separation: float) -> float:
        odometer = Odometer(
            epsilon=epsilon, initial_clip=initial_clip, initial_noise_std=initial_noise_std
        )
        for _ in range(steps):
            odometer.step(math.exp(log_separation))
        return odometer.log_delta - target

    low, high = math.log(1e-6), math.log(1e4)
    if excess(low) > 0:
        raise CalibrationError("no noise below a million times model_clip reaches the target")
    if excess(high) <= 0:
        raise ParameterError("initial_noise_std", "below the noise that meets the target alone")
    root = float(scipy.optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-13))
    for margin in (1e-13, 1e-12, 1e-11, 1e-10, 1e-9):
        noise_std = 2 * model_clip / math.exp(root) * (1 + margin)
        reached = account(
            epsilon=epsilon,
            initial_clip=initial_clip,
            model_clip=model_clip,
            noise_std=noise_std,
            steps=steps,
            initial_noise_std=initial_noise_std,
        )
        if reached.at_delta <= delta:
            return noise_std
    raise CalibrationError("the search for the noise of model clipping did not converge")


def separation_of(model_clip: float, noise_std: float) -> float:
    """Return 2 model_clip / noise_std, rounded up.

    Raises:
        ParameterError: a number is not positive.
    """
    radius = require_positive("model_clip", model_clip)
    return 2 * radius / require_noise("noise_std", noise_std) * (1 + 1e-15)
