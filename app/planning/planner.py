"""From a policy to a plan.

Gradient clipping, by default, ends where a fresh initialisation would: with noise of the
initialisation's own size. The information bound of MATH.md section 3d says that a certified model
cannot keep more of the original than that, so any other place to end costs accuracy.

In the reference frame an initialisation has one unit of spread per coordinate. The allowed drift
at that spread is mu, the Gaussian form of the target. Half of it is spent on the start
(contraction^steps * 2 initial_clip = mu/2), half on the gradients
(shift * (1 - contraction^steps) / (1 - contraction) = mu/2).
"""

import math
from collections.abc import Mapping

from app.accounting import catalogue, gaussian, gradient_clipping
from app.domain.checks import require_non_negative, require_positive
from app.domain.errors import PlanError
from app.domain.plan import Plan
from app.domain.policy import Policy

DEFAULT_STEPS = 20
DEFAULT_INITIAL_CLIP = 1.0
DEFAULT_LEARNING_RATE = 0.1
_LARGEST_SHARE_OF_BUDGET = 0.25
_PARAMETERS = (
    "initial_clip",
    "gradient_clip",
    "learning_rate",
    "weight_decay",
    "noise_std",
    "steps",
)
_POSITIVE = ("initial_clip", "learning_rate", "noise_std")


def make_plan(*, policy: Policy, recipe_epochs: float, steps_per_epoch: int) -> Plan:
    """Return the plan of one run.

    Args:
        policy: target, mechanism, parameters fixed by the operator, and budget.
        recipe_epochs: the training recipe's epochs, the budget where the policy sets none.
        steps_per_epoch: batches in one pass over the retained records.

    Raises:
        PlanError: no plan satisfies the policy.
        ParameterError: a fixed parameter is out of its range.
    """
    if policy.mechanism not in ("auto", gradient_clipping.NAME):
        raise PlanError(f"mechanism must be auto or {', '.join(catalogue.ACCOUNTANTS)}")
    if policy.adaptive:
        raise PlanError(
            "adaptive requests need a mechanism that also protects the records still present; "
            f"{gradient_clipping.NAME} does not: set adaptive to false"
        )
    budget_epochs = policy.budget_epochs or recipe_epochs
    budget_steps = math.floor(budget_epochs * steps_per_epoch)
    if policy.parameters.get("steps", 0) > budget_steps:
        raise PlanError(
            f"the plan takes {policy.parameters['steps']:.0f} noisy steps but budget_epochs allows "
            f"{budget_steps}: raise budget_epochs or lower steps"
        )
    if budget_steps < 1:
        raise PlanError("budget_epochs allows no step at all: raise it")
    parameters = gradient_clipping_parameters(
        epsilon=policy.epsilon,
        delta=policy.delta,
        fixed=policy.parameters,
        default_steps=max(1, min(DEFAULT_STEPS, int(budget_steps * _LARGEST_SHARE_OF_BUDGET))),
    )
    guarantee = catalogue.account(gradient_clipping.NAME, parameters)
    mu = gaussian.mu_of(epsilon=policy.epsilon, delta=policy.delta)
    return Plan(
        mechanism=gradient_clipping.NAME,
        parameters=parameters,
        epsilon=policy.epsilon,
        delta=policy.delta,
        budget_epochs=budget_epochs,
        predicted={
            "epsilon": guarantee.epsilon(delta=policy.delta),
            "noisy_steps": parameters["steps"],
            "gradient_steps": budget_steps,
            "surviving_information_bits": gaussian.surviving_information_bits(mu=mu),
        },
    )


def gradient_clipping_parameters(
    *, epsilon: float, delta: float, fixed: Mapping[str, float], default_steps: int = DEFAULT_STEPS
) -> dict[str, float]:
    """Return all parameters of gradient clipping for a target, keeping those in ``fixed``.

    Raises:
        PlanError: a fixed parameter is unknown, or a fixed noise_std misses the target.
        ParameterError: a parameter is out of its range.
    """
    for name, number in fixed.items():
        if name not in _PARAMETERS:
            raise PlanError(f"unknown parameter {name!r}; expected {', '.join(_PARAMETERS)}")
        (require_positive if name in _POSITIVE else require_non_negative)(name, number)
    try:
        return _complete(epsilon=epsilon, delta=delta, fixed=fixed, default_steps=default_steps)
    except ArithmeticError as error:
        raise PlanError("the fixed parameters leave the range of floating point") from error


def _complete(
    *, epsilon: float, delta: float, fixed: Mapping[str, float], default_steps: int
) -> dict[str, float]:
    steps = int(fixed.get("steps", default_steps))
    if steps != fixed.get("steps", steps) or steps < 1:
        raise PlanError("steps must be a whole number of at least 1")
    half_drift = gaussian.mu_of(epsilon=epsilon, delta=delta) / 2
    initial_clip = fixed.get("initial_clip", DEFAULT_INITIAL_CLIP)
    learning_rate = fixed.get("learning_rate", DEFAULT_LEARNING_RATE)
    contraction = min(0.999, (half_drift / (2 * initial_clip)) ** (1 / steps))
    weight_decay = fixed.get("weight_decay", (1 - contraction) / learning_rate)
    contraction = 1 - learning_rate * weight_decay
    passes = steps if weight_decay == 0 else (1 - contraction**steps) / (1 - contraction)
    parameters = {
        "initial_clip": initial_clip,
        "gradient_clip": fixed.get("gradient_clip", half_drift / (2 * learning_rate * passes)),
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "steps": steps,
    }
    if "noise_std" not in fixed:
        noise_std = gradient_clipping.calibrate(epsilon=epsilon, delta=delta, **parameters)
        return parameters | {"noise_std": noise_std}
    parameters["noise_std"] = fixed["noise_std"]
    guarantee = catalogue.account(gradient_clipping.NAME, parameters)
    if not guarantee.meets(epsilon=epsilon, delta=delta):
        raise PlanError(
            f"noise_std gives epsilon {guarantee.epsilon(delta=delta):.4g}, not {epsilon:.4g}: "
            "leave it out and it will be computed"
        )
    return parameters
