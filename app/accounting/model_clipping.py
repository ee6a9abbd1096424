"""Model clipping (Koloskova et al. 2025, equation 4).

    x0 = clip(x, initial_clip) + N(0, initial_noise_std^2 I)      (no noise is allowed)
    x <- clip(x - learning_rate (gradient + weight_decay x), model_clip) + N(0, noise_std^2 I)

Symbols of the paper: C0 = initial_clip, C2 = model_clip, sigma0 = initial_noise_std,
sigma = noise_std, T = steps. With theta_eps(r) the hockey-stick divergence of two Gaussians r
standard deviations apart (``gaussian.log_delta``):

    delta_0     = theta_eps(2 C0 / sigma0), or 1 without initial noise
    eps_t       = log(1 + (e^eps - 1) / delta_t)
    delta_{t+1} = delta_t * theta_{eps_t}(2 C2 / sigma)

With a ``dimension``, floats add 2 mu to each distance and (1 + e^eps) steps tv in the end.

Guarantee: one point (epsilon, delta). Neighbouring relation: any two starts. Assumptions:
``TERMS``. Source: docs/guarantees.md, section 5.
"""

import math

from app.accounting import gaussian
from app.accounting.guarantees import PointGuarantee
from app.accounting.precision import NONE, Residue, sampling_residue
from app.accounting.terms import any_start
from app.domain import checks
from app.domain.errors import CalibrationError

NAME = "model_clipping"
MOST_STEPS = 1_000_000
_HOPELESS = -700.0  # log delta: what is left is not the steps'

TERMS = any_start("Koloskova et al. 2025, eq. 4; Balle et al. 2019, Theorem 1")


class Odometer:
    """Counts the steps that were taken and says what they are worth at one epsilon."""

    __slots__ = ("_dimension", "_draws", "_epsilon", "_log_growth", "log_delta", "steps")

    def __init__(
        self,
        *,
        epsilon: float,
        initial_clip: float,
        initial_noise_std: float = 0.0,
        dimension: int | None = None,
    ) -> None:
        self._epsilon = checks.require_positive("epsilon", epsilon)
        # log(e^epsilon - 1), for any epsilon without overflow.
        self._log_growth = epsilon + math.log(-math.expm1(-epsilon))
        checks.require_positive("initial_clip", initial_clip)
        self._dimension = (
            None if dimension is None else checks.require_steps("dimension", dimension)
        )
        self.steps = self._draws = 0
        self.log_delta = 0.0
        if checks.require_non_negative("initial_noise_std", initial_noise_std) > 0:
            self._draws = 1
            checks.require_noise("initial_noise_std", initial_noise_std)
            apart = _separation("initial_clip", initial_clip, initial_noise_std, dimension)
            self.log_delta = gaussian.rounded_log_delta(mu=apart, epsilon=epsilon)

    def step(self, separation: float) -> float:
        """Count one step whose Gaussians are ``separation_of`` apart; return log delta."""
        excess = self._log_growth - self.log_delta
        amplified = (
            excess + math.log1p(math.exp(-excess)) if excess > 0 else math.log1p(math.exp(excess))
        )
        # Rounded down: a smaller epsilon_t gives a larger delta.
        amplified *= 1 - 1e-14
        factor = gaussian.rounded_log_delta(mu=separation, epsilon=amplified)
        self.log_delta = min(0.0, (self.log_delta + factor) * (1 - 1e-15))
        self.steps += 1
        self._draws += 1
        return self.log_delta

    def guarantee(self) -> PointGuarantee:
        """Return what the steps so far guarantee."""
        delta = math.exp(max(self.log_delta, -700.0)) * (1 + 2e-13)
        if self._dimension is not None:
            left = _residue(1.0, 1.0, self._dimension).delta
            delta += (1 + math.exp(min(self._epsilon, 700.0))) * self._draws * left * (1 + 1e-12)
        return PointGuarantee(terms=TERMS, at_epsilon=self._epsilon, at_delta=min(1.0, delta))

    def meets(self, *, delta: float) -> bool:
        """Say whether the steps so far reach ``delta`` at this epsilon."""
        return self.guarantee().at_delta <= checks.require_delta(delta)


def account(
    *,
    epsilon: float,
    initial_clip: float,
    model_clip: float,
    noise_std: float,
    steps: int,
    initial_noise_std: float = 0.0,
    dimension: int | None = None,
) -> PointGuarantee:
    """Return the point (epsilon, delta) that ``steps`` equal steps give at ``epsilon``."""
    odometer = Odometer(
        epsilon=epsilon,
        initial_clip=initial_clip,
        initial_noise_std=initial_noise_std,
        dimension=dimension,
    )
    separation = separation_of(model_clip, noise_std, dimension=dimension)
    for _ in range(checks.require_steps("steps", steps)):
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
    dimension: int | None = None,
) -> int:
    """Return the first number of steps, up to a million, at which delta_t <= delta."""
    target = math.log(checks.require_delta(delta))
    odometer = Odometer(
        epsilon=epsilon,
        initial_clip=initial_clip,
        initial_noise_std=initial_noise_std,
        dimension=dimension,
    )
    separation = separation_of(model_clip, noise_std, dimension=dimension)
    for _ in range(MOST_STEPS):
        before = odometer.log_delta
        if odometer.step(separation) <= target and odometer.meets(delta=delta):
            return odometer.steps
        if odometer.log_delta >= before - 1e-12 and odometer.steps > 1000:
            break
        if odometer.log_delta < _HOPELESS:
            break
    raise CalibrationError("model clipping does not reach delta within a million steps")


def separation_of(model_clip: float, noise_std: float, *, dimension: int | None = None) -> float:
    """Return how far apart a step's Gaussians may be, in standard deviations, rounded up."""
    return _separation("model_clip", model_clip, noise_std, dimension)


def _separation(name: str, radius: float, noise_std: float, dimension: int | None) -> float:
    radius = checks.require_positive(name, radius)
    noise = checks.require_noise("noise_std", noise_std)
    residue = NONE if dimension is None else _residue(radius, noise, dimension)
    return (2 * radius / noise + 2 * residue.mu) * (1 + 1e-15)


def _residue(radius: float, noise_std: float, dimension: int) -> Residue:
    """Return the residue of one draw around a point of the ball."""
    return sampling_residue(dimension=dimension, draws=1, reach=radius, noise_std=noise_std)
