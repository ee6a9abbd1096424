"""All parameters of gradient clipping, from a target and those that the operator fixed.

Each of the four that may vary by step is one number or a list of one number per step. A missing
weight_decay is chosen so that every step contracts alike, a missing gradient_clip so that the
gradients spend their half of the drift, and a missing noise_std is one number for all steps. Where
all three are missing and the reflection coupling allows larger gradients at the same noise in the
release, they are chosen for that.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from app.accounting import gaussian, gradient_clipping
from app.accounting.guarantees import GaussianGuarantee
from app.domain.checks import require_non_negative, require_positive
from app.domain.errors import PlanError
from app.domain.schedules import Schedule, at
from app.planning.coupled_clipping import coupled_parameters
from app.planning.fixed import numbers, refuse_missed, refuse_unknown, whole_steps

DEFAULT_STEPS = 20
DEFAULT_INITIAL_CLIP = 1.0
DEFAULT_LEARNING_RATE = 0.1
INITIALISATION_STD = 1.0
_BY_STEP = ("gradient_clip", "learning_rate", "weight_decay", "noise_std")
_CHOSEN_TOGETHER = frozenset({"gradient_clip", "weight_decay", "noise_std"})
_POSITIVE = ("initial_clip", "learning_rate", "noise_std", "steps")


@dataclass(frozen=True)
class ClippingParameters:
    """Keyword arguments of the accountant, all of them."""

    initial_clip: float
    gradient_clip: Schedule
    learning_rate: Schedule
    weight_decay: Schedule
    noise_std: Schedule
    steps: int
    dimension: int | None = None

    def account(self) -> GaussianGuarantee:
        """Return what they guarantee."""
        return gradient_clipping.account(**asdict(self))

    def to_certificate(self) -> dict[str, Schedule]:
        """Return them by name, without a dimension that is not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def variance(self) -> float:
        """Return the variance of the noise in one released coordinate."""
        variance = 0.0
        for step in range(self.steps):
            contraction = 1 - at(self.learning_rate, step) * at(self.weight_decay, step)
            variance = contraction**2 * variance + at(self.noise_std, step) ** 2
        return variance


def complete_gradient_clipping(
    *,
    epsilon: float,
    delta: float,
    fixed: Mapping[str, Schedule],
    default_steps: int = DEFAULT_STEPS,
    dimension: int | None = None,
) -> ClippingParameters:
    """Return all parameters of gradient clipping for a target, keeping those in ``fixed``.

    Without a ``dimension`` the target is met in real arithmetic.

    Raises:
        PlanError: a fixed parameter is unknown, lists differ in length from each other or from
            steps, or a fixed noise_std misses the target.
        ParameterError: a parameter is out of its range.
    """
    refuse_unknown(fixed, gradient_clipping.account)
    for name, schedule in fixed.items():
        check = require_positive if name in _POSITIVE else require_non_negative
        for number in (schedule,) if isinstance(schedule, int | float) else schedule:
            check(name, number)
    steps = _steps(fixed, default_steps)
    try:
        parameters = _coupled(
            epsilon=epsilon, delta=delta, fixed=fixed, steps=steps, dimension=dimension
        ) or _complete(epsilon=epsilon, delta=delta, fixed=fixed, steps=steps, dimension=dimension)
        guarantee = parameters.account()
    except ArithmeticError as error:
        raise PlanError("the fixed parameters leave the range of floating point") from error
    refuse_missed(guarantee, epsilon, delta)
    return parameters


def _steps(fixed: Mapping[str, Schedule], default: int) -> int:
    """Return the fixed number of steps, the common length of the lists, or ``default``."""
    lengths = {
        name: len(schedule)
        for name, schedule in fixed.items()
        if name in _BY_STEP and not isinstance(schedule, int | float)
    }
    single = numbers({name: value for name, value in fixed.items() if name not in _BY_STEP})
    steps = whole_steps(single, next(iter(lengths.values()), default))
    for name, length in lengths.items():
        if length != steps:
            raise PlanError(
                f"{name} lists {length} numbers for {steps} steps: one number per step is needed"
            )
    return steps


def _coupled(
    *,
    epsilon: float,
    delta: float,
    fixed: Mapping[str, Schedule],
    steps: int,
    dimension: int | None,
) -> ClippingParameters | None:
    """Return parameters by the coupling, if it allows larger gradients than ``_complete``."""
    rate = fixed.get("learning_rate", DEFAULT_LEARNING_RATE)
    if not isinstance(rate, int | float) or not fixed.keys().isdisjoint(_CHOSEN_TOGETHER):
        return None
    initial_clip = at(fixed.get("initial_clip", DEFAULT_INITIAL_CLIP), 0)
    found = coupled_parameters(
        epsilon=epsilon,
        delta=delta,
        initial_clip=initial_clip,
        steps=steps,
        final_noise_std=INITIALISATION_STD,
        least_reach=gaussian.mu_of(epsilon=epsilon, delta=delta) * INITIALISATION_STD / 2,
        dimension=dimension,
    )
    if found is None:
        return None
    return ClippingParameters(
        initial_clip=initial_clip,
        gradient_clip=found.shift / 2 / rate,
        learning_rate=rate,
        weight_decay=(1 - found.contraction) / rate,
        noise_std=found.noise_std * (1 + 1e-12),
        steps=steps,
        dimension=dimension,
    )


def _complete(
    *,
    epsilon: float,
    delta: float,
    fixed: Mapping[str, Schedule],
    steps: int,
    dimension: int | None,
) -> ClippingParameters:
    half_drift = gaussian.mu_of(epsilon=epsilon, delta=delta) * INITIALISATION_STD / 2
    initial_clip = at(fixed.get("initial_clip", DEFAULT_INITIAL_CLIP), 0)
    rate = fixed.get("learning_rate", DEFAULT_LEARNING_RATE)
    contraction = min(0.999, (half_drift / (2 * initial_clip)) ** (1 / steps))
    decay = fixed.get("weight_decay", _over(1 - contraction, rate))
    clip = fixed.get("gradient_clip")
    if clip is None:
        clip = half_drift / (2 * _reach(rate, decay, steps))
    noise_std = fixed.get("noise_std")
    if noise_std is None:
        noise_std = gradient_clipping.calibrate(
            epsilon=epsilon,
            delta=delta,
            initial_clip=initial_clip,
            gradient_clip=clip,
            learning_rate=rate,
            weight_decay=decay,
            steps=steps,
            dimension=dimension,
        )
    return ClippingParameters(
        initial_clip=initial_clip,
        gradient_clip=clip,
        learning_rate=rate,
        weight_decay=decay,
        noise_std=noise_std,
        steps=steps,
        dimension=dimension,
    )


def _over(number: float, schedule: Schedule) -> Schedule:
    """Return ``number`` divided by a schedule."""
    if isinstance(schedule, int | float):
        return number / schedule
    return tuple(number / each for each in schedule)


def _reach(rate: Schedule, decay: Schedule, steps: int) -> float:
    """Return how far gradients of norm 1 can move the end of the run."""
    if isinstance(rate, int | float) and isinstance(decay, int | float):
        contraction = 1 - rate * decay
        passes = steps if decay == 0 else (1 - contraction**steps) / (1 - contraction)
        return rate * passes
    reach = 0.0
    for step in range(steps):
        reach = (1 - at(rate, step) * at(decay, step)) * reach + at(rate, step)
    return reach
