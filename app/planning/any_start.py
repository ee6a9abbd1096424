"""Quotes of the mechanisms that forget any start: gradient clipping, model clipping, output noise.

By default each ends with noise of the size of a fresh initialisation, one unit per coordinate of
the reference frame. The information bound of MATH.md section 3d says that no such release keeps
more of the original, so any other place to end costs accuracy, and what the model then scores comes
from fine-tuning within the budget.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.accounting import gaussian, gradient_clipping, model_clipping, output_perturbation
from app.accounting.guarantees import GaussianGuarantee
from app.domain.checks import require_positive
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.domain.schedules import Schedule
from app.planning.clipping_parameters import (
    DEFAULT_INITIAL_CLIP,
    DEFAULT_LEARNING_RATE,
    DEFAULT_STEPS,
    INITIALISATION_STD,
    complete_gradient_clipping,
)
from app.planning.fixed import numbers, refuse_missed, refuse_unknown, whole_steps
from app.planning.quote import Quote
from app.planning.shape import ModelShape

# Noisy steps hardly learn: on MNIST, 5 % of a budget of one epoch cost 3 points of accuracy.
_LARGEST_SHARE_OF_BUDGET = 0.005
MOST_STEPS = 1_000_000


def quote_gradient_clipping(policy: Policy, shape: ModelShape) -> Quote:
    """Quote gradient clipping.

    The drift allowed at one unit of noise is mu. Half of it is spent on the start
    (contraction^steps * 2 initial_clip = mu/2), half on the gradients
    (shift * (1 - contraction^steps) / (1 - contraction) = mu/2). Where the worlds meet faster than
    they drift, the gradients get more.
    """
    budget_steps = _budget_steps(policy, shape)
    chosen = complete_gradient_clipping(
        epsilon=policy.epsilon,
        delta=policy.delta,
        fixed=policy.parameters,
        default_steps=max(1, min(DEFAULT_STEPS, int(budget_steps * _LARGEST_SHARE_OF_BUDGET))),
        dimension=shape.dimension,
    )
    return _quote(
        gradient_clipping.NAME,
        chosen.to_certificate(),
        chosen.account(),
        chosen.steps,
        chosen.variance(),
        policy,
        shape,
    )


def quote_output_perturbation(policy: Policy, shape: ModelShape) -> Quote:
    """Quote output perturbation: clip and add noise once."""
    _budget_steps(policy, shape)
    fixed = numbers(policy.parameters)
    refuse_unknown(fixed, output_perturbation.account)
    for name, number in fixed.items():
        require_positive(name, number)
    mu = gaussian.mu_of(epsilon=policy.epsilon, delta=policy.delta)
    initial_clip = fixed.get("initial_clip", mu * INITIALISATION_STD / 2)
    noise_std = fixed.get("noise_std") or output_perturbation.calibrate(
        epsilon=policy.epsilon, delta=policy.delta, initial_clip=initial_clip, **_floats(shape)
    )
    parameters: dict[str, Any] = {"initial_clip": initial_clip, "noise_std": noise_std}
    parameters |= _floats(shape)
    guarantee = output_perturbation.account(**parameters)
    refuse_missed(guarantee, policy.epsilon, policy.delta)
    variance = noise_std**2
    return _quote(output_perturbation.NAME, parameters, guarantee, 0, variance, policy, shape)


def quote_model_clipping(policy: Policy, shape: ModelShape) -> Quote:
    """Quote model clipping: the last step's noise is the release's."""
    _budget_steps(policy, shape)
    given = numbers(policy.parameters)
    fixed = {name: value for name, value in given.items() if name != "steps"}
    refuse_unknown(fixed, model_clipping.account)
    sizes: dict[str, Any] = {
        "initial_clip": fixed.get("initial_clip", DEFAULT_INITIAL_CLIP),
        "model_clip": fixed.get("model_clip", INITIALISATION_STD),
        "noise_std": fixed.get("noise_std", INITIALISATION_STD),
        "initial_noise_std": fixed.get("initial_noise_std", 0.0),
        **_floats(shape),
    }
    needed = model_clipping.steps_needed(epsilon=policy.epsilon, delta=policy.delta, **sizes)
    steps = whole_steps(given, needed)
    if steps < needed:
        raise PlanError(f"these clips and noise need {needed} steps, not {steps}")
    parameters = {"epsilon": policy.epsilon, **sizes, "steps": steps}
    guarantee = model_clipping.account(**parameters)
    variance = sizes["noise_std"] ** 2
    quote = _quote(model_clipping.NAME, parameters, guarantee, steps, variance, policy, shape)
    return replace(quote, settings={"learning_rate": DEFAULT_LEARNING_RATE, "weight_decay": 0.0})


def _quote(
    mechanism: str,
    parameters: Mapping[str, Schedule],
    guarantee: object,
    steps: int,
    variance: float,
    policy: Policy,
    shape: ModelShape,
) -> Quote:
    budget_steps = _budget_steps(policy, shape)
    _refuse_beyond(steps, budget_steps)
    bits = (
        guarantee.surviving_information_bits() if isinstance(guarantee, GaussianGuarantee) else None
    )
    return Quote(
        mechanism=mechanism,
        parameters=parameters,
        guarantee=guarantee,  # type: ignore[arg-type]
        certifying_gradients=steps * shape.batch_size,
        gradient_computations=budget_steps * shape.batch_size,
        noise_per_coordinate=math.sqrt(variance),
        surviving_information_bits=bits,
    )


def _floats(shape: ModelShape) -> dict[str, int]:
    """Return what the accountants need to count floats, where it is known."""
    return {} if shape.dimension is None else {"dimension": shape.dimension}


def _budget_steps(policy: Policy, shape: ModelShape) -> int:
    """Return how many steps the budget allows; refuse a fixed number of steps beyond it."""
    steps = math.floor((policy.budget_epochs or shape.recipe_epochs) * shape.steps_per_epoch)
    if steps < 1:
        raise PlanError("budget_epochs allows no step at all: raise it")
    fixed = policy.parameters.get("steps", 0)
    _refuse_beyond(numbers({"steps": fixed})["steps"], steps)
    return steps


def _refuse_beyond(steps: float, budget_steps: int) -> None:
    if steps > budget_steps:
        raise PlanError(
            f"the plan takes {steps:g} noisy steps but budget_epochs allows {budget_steps}: raise "
            "budget_epochs or lower steps"
        )
    if steps > MOST_STEPS:
        raise PlanError(f"a run takes at most {MOST_STEPS:,} noisy steps, not {steps:g}")
