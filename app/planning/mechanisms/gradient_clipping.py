"""Gradient clipping: every step clips the gradient, decays the weights and adds noise.

Each of the four numbers that may vary by step is one number or a list of one number per step. What
a policy leaves out is chosen for its target: weight_decay so that every step contracts alike,
gradient_clip so that the gradients spend their half of the drift, and noise_std as one number for
all steps. Where all three are missing and the reflection coupling allows larger gradients at the
same noise in the release, they are chosen for that: by the running minimum, gradients may move the
end of a run by half of mu, in units of its noise; where steps contract more, the worlds meet
instead, and the gradients may be several times larger.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

from app.accounting import gaussian, gradient_clipping
from app.accounting.chains.reflection import SEARCH_CELLS
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.search import smallest_noise_by_secant
from app.domain.checks import require_non_negative, require_positive
from app.domain.errors import CalibrationError, ParameterError, PlanError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.schedules import Schedule, at, until, varies
from app.planning.mechanisms import any_start
from app.planning.mechanisms.mechanism import (
    Draws,
    NoiseStds,
    Numbers,
    Positive,
    Steps,
    dimension_of,
)
from app.planning.policy_parameters import numbers, refuse_missed, refuse_unknown, whole_steps
from app.planning.quote import Quote
from app.planning.shape import ModelShape

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


DEFAULT_STEPS = 20
# Noisy steps hardly learn: on MNIST, 5 % of a budget of one epoch cost 3 points of accuracy.
_LARGEST_SHARE_OF_BUDGET = 0.005
_BY_STEP = ("gradient_clip", "learning_rate", "weight_decay", "noise_std")
_CHOSEN_TOGETHER = frozenset({"gradient_clip", "weight_decay", "noise_std"})
_POSITIVE = ("initial_clip", "learning_rate", "noise_std", "steps")


@dataclass(frozen=True, kw_only=True)
class GradientClipping(any_start.AnyStart):
    """See ``app.accounting.gradient_clipping``; ``steps`` are expected, a run never takes more.

    All but initial_clip and steps are one number, or one for each step.
    """

    name: ClassVar[str] = gradient_clipping.NAME
    stepwise: ClassVar[bool] = True

    initial_clip: Positive
    gradient_clip: Numbers
    learning_rate: Numbers
    weight_decay: Numbers
    noise_std: NoiseStds
    steps: Steps

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote few steps, and leave the rest of the budget to fine-tuning."""
        most = max(1, int(any_start.budget_of(policy, shape) * _LARGEST_SHARE_OF_BUDGET))
        chosen = complete_gradient_clipping(
            **policy.target,
            fixed=policy.parameters,
            default_steps=min(DEFAULT_STEPS, most),
            dimension=shape.dimension,
        )
        return chosen.offer(
            policy, shape, chosen.account(), steps=chosen.steps, variance=chosen.variance()
        )

    def account(self) -> GaussianGuarantee:
        """Return what all steps guarantee."""
        return gradient_clipping.account(**self.parameters())

    @property
    def varies(self) -> bool:
        """Whether any number differs from step to step."""
        by_step = (self.gradient_clip, self.learning_rate, self.weight_decay, self.noise_std)
        return any(map(varies, by_step))

    def variance(self) -> float:
        """Return the variance of the noise in one released coordinate."""
        variance = 0.0
        for step in range(self.steps):
            contraction = 1 - at(self.learning_rate, step) * at(self.weight_decay, step)
            variance = contraction**2 * variance + at(self.noise_std, step) ** 2
        return variance

    def taken(self, plan: Plan, steps: int) -> Self:  # noqa: ARG002
        """Return the parameters of a run that took ``steps`` steps."""
        return replace(self, **until(self.parameters(), steps) | {"steps": steps})

    def draws(self, *, first: bool) -> list[Draws]:  # noqa: ARG002
        """Return the noise of the steps."""
        dimension, noise_std = dimension_of(self), self.noise_std
        if isinstance(noise_std, int | float):
            return [Draws(noise_std, dimension * self.steps)]
        return [Draws(noise, dimension) for noise in noise_std]


def complete_gradient_clipping(
    *,
    epsilon: float,
    delta: float,
    fixed: Mapping[str, Schedule],
    default_steps: int = DEFAULT_STEPS,
    dimension: int | None = None,
) -> GradientClipping:
    """Return all parameters of gradient clipping for a target, keeping those in ``fixed``.

    The drift allowed at one unit of noise is mu. Half of it is spent on the start
    (contraction^steps * 2 initial_clip = mu/2), half on the gradients
    (shift * (1 - contraction^steps) / (1 - contraction) = mu/2). Where the worlds meet faster than
    they drift, the gradients get more. Without a ``dimension`` the target is met in real
    arithmetic.
    """
    refuse_unknown(fixed, GradientClipping)
    for name, schedule in fixed.items():
        check = require_positive if name in _POSITIVE else require_non_negative
        for number in (schedule,) if isinstance(schedule, int | float) else schedule:
            check(name, number)
    target: Mapping[str, Any] = {"epsilon": epsilon, "delta": delta}
    sizes: dict[str, Any] = {
        "initial_clip": at(fixed.get("initial_clip", any_start.DEFAULT_INITIAL_CLIP), 0),
        "steps": _steps(fixed, default_steps),
        "dimension": dimension,
    }
    rate = fixed.get("learning_rate", any_start.DEFAULT_LEARNING_RATE)
    chosen: Mapping[str, Any] | None = None
    try:
        if isinstance(rate, int | float) and fixed.keys().isdisjoint(_CHOSEN_TOGETHER):
            chosen = _coupled(target, sizes, rate)
        chosen = chosen or _uncoupled(target, sizes, rate, fixed)
        parameters = GradientClipping(**sizes, learning_rate=rate, **chosen)
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


def _half_drift(target: Mapping[str, Any]) -> float:
    return gaussian.mu_of(**target) * any_start.INITIALISATION_STD / 2


def _coupled(
    target: Mapping[str, Any], sizes: Mapping[str, Any], rate: float
) -> dict[str, Any] | None:
    """Return what is chosen together, if the coupling allows larger gradients; None otherwise."""
    found = coupled_parameters(
        **target,
        **sizes,
        final_noise_std=any_start.INITIALISATION_STD,
        least_reach=_half_drift(target),
    )
    if found is None:
        return None
    return {
        "gradient_clip": found.shift / 2 / rate,
        "weight_decay": (1 - found.contraction) / rate,
        "noise_std": found.noise_std * (1 + 1e-12),
    }


def _uncoupled(
    target: Mapping[str, Any],
    sizes: Mapping[str, Any],
    rate: Schedule,
    fixed: Mapping[str, Schedule],
) -> dict[str, Any]:
    """Return what is chosen by the running minimum, where it is not fixed."""
    half_drift, steps = _half_drift(target), sizes["steps"]
    contraction = min(0.999, (half_drift / (2 * sizes["initial_clip"])) ** (1 / steps))
    left = 1 - contraction
    decay = tuple(left / each for each in rate) if isinstance(rate, Sequence) else left / rate
    chosen: dict[str, Any] = {"weight_decay": fixed.get("weight_decay", decay)}
    clip = fixed.get("gradient_clip")
    if clip is None:
        clip = half_drift / (2 * _reach(rate, chosen["weight_decay"], steps))
    chosen["gradient_clip"] = clip
    noise_std = fixed.get("noise_std")
    if noise_std is None:
        noise_std = gradient_clipping.calibrate(**target, **sizes, learning_rate=rate, **chosen)
    return {**chosen, "noise_std": noise_std}


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
