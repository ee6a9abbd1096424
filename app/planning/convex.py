"""Quotes of the mechanisms for linear heads: here the drift is small, and forgetting is cheap."""

import math
from collections.abc import Callable

from app.accounting import (
    adaptive,
    gaussian,
    noisy_gd_convex,
    projected_noisy_sgd,
    tracked_release,
)
from app.accounting.guarantees import GaussianGuarantee
from app.domain.errors import CalibrationError, PlanError
from app.domain.policy import Policy
from app.planning.fixed import numbers, refuse_unknown, whole_steps
from app.planning.quote import Quote
from app.planning.shape import ConvexShape, ModelShape


def quote_tracked_release(policy: Policy, shape: ModelShape) -> Quote:
    """Quote noise-free steps and one noisy release; ``steps`` may be 0."""
    head = _head(shape)
    fixed = numbers(policy.parameters)
    refuse_unknown(fixed, tracked_release.account)
    steps = whole_steps(fixed, 0)
    job = _job(head) | {"steps": steps}
    noise_std = fixed.get("noise_std") or tracked_release.calibrate(
        epsilon=policy.epsilon,
        delta=policy.delta,
        **job,  # type: ignore[arg-type]
    )
    parameters = job | {"noise_std": noise_std}
    return _quote(
        tracked_release.NAME, tracked_release.account, parameters, noise_std, policy, shape
    )


def quote_projected_noisy_sgd(policy: Policy, shape: ModelShape) -> Quote:
    """Quote the steps that a lineage trained with noise must go on for."""
    head = _head(shape)
    if head.noise_std == 0:
        raise PlanError("the lineage was trained without noise; use tracked_release")
    fixed = numbers(policy.parameters)
    refuse_unknown(fixed, projected_noisy_sgd.account)
    job = _job(head) | {"noise_std": head.noise_std}
    needed = projected_noisy_sgd.steps_needed(epsilon=policy.epsilon, delta=policy.delta, **job)
    steps = whole_steps(fixed, needed)
    if steps < needed:
        raise PlanError(f"this noise needs {needed} steps, not {steps}")
    contraction = 1 - head.learning_rate * head.weight_decay
    released = head.noise_std / math.sqrt(1 - contraction**2)
    parameters = job | {"steps": steps}
    return _quote(
        projected_noisy_sgd.NAME,
        projected_noisy_sgd.account,
        parameters,
        released,
        policy,
        shape,
    )


def quote_noisy_history(_: Policy, shape: ModelShape) -> Quote:
    """Decline: this accountant reads what a lineage did, and does not say what it should do."""
    _head(shape)
    raise PlanError(
        "accounts for the whole history of a lineage after the fact; projected_noisy_sgd is its "
        "quote ahead of time"
    )


def quote_noisy_gd_convex(policy: Policy, shape: ModelShape) -> Quote:
    """Quote full-batch noisy gradient descent, which also protects the records still present."""
    head = _head(shape)
    known = ("unlearning_steps",)
    fixed = numbers(policy.parameters)
    for name in fixed:
        if name not in known:
            raise PlanError(f"unknown parameter {name!r}; expected {', '.join(known)}")
    training = max(1, round(shape.recipe_epochs))
    job = {
        "learning_rate": head.learning_rate,
        "weight_decay": head.weight_decay,
        "smoothness": head.smoothness,
        "lipschitz": head.lipschitz,
        "records": shape.retained,
        "training_steps": training,
        "unlearning_steps": int(fixed.get("unlearning_steps", training)),
    }
    # mu is inversely proportional to the noise, whatever is composed.
    unit = _noisy_gd_guarantee(job | {"noise_std": 1.0}, policy, shape)
    target = gaussian.mu_of(epsilon=policy.epsilon, delta=policy.delta)
    noise_std = unit.mu / target * (1 + 1e-9)
    parameters = job | {"noise_std": noise_std}
    guarantee = _noisy_gd_guarantee(parameters, policy, shape)
    contraction = 1 - head.learning_rate * head.weight_decay
    gradients = int(job["unlearning_steps"]) * shape.retained
    return Quote(
        mechanism=noisy_gd_convex.NAME,
        parameters=parameters,
        guarantee=guarantee,
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=noise_std / math.sqrt(1 - contraction**2),
    )


def _noisy_gd_guarantee(
    parameters: dict[str, float], policy: Policy, shape: ModelShape
) -> GaussianGuarantee:
    """Return the deletion guarantee, composed with every earlier release if requests adapt."""
    deletion = noisy_gd_convex.account(**parameters)  # type: ignore[arg-type]
    if not policy.adaptive:
        return deletion
    of_one_run = {
        name: value
        for name, value in parameters.items()
        if name not in ("training_steps", "unlearning_steps")
    }
    steps = parameters["training_steps"] + shape.earlier_releases * parameters["unlearning_steps"]
    present = noisy_gd_convex.account_present(**of_one_run, steps=int(steps))  # type: ignore[arg-type]
    composed = adaptive.compose(
        deletion=deletion, present=present, earlier_releases=shape.earlier_releases
    )
    if not isinstance(composed, GaussianGuarantee):
        raise CalibrationError("Gaussian guarantees compose to a Gaussian one")
    return composed


def _head(shape: ModelShape) -> ConvexShape:
    if shape.convex is None:
        raise PlanError(
            "needs a linear head, whose loss is convex with constants that are enforced"
        )
    return shape.convex


def _job(head: ConvexShape) -> dict[str, float]:
    return {
        "drift": head.drift,
        "learning_rate": head.learning_rate,
        "weight_decay": head.weight_decay,
        "smoothness": head.smoothness,
    }


def _quote(
    mechanism: str,
    account: Callable[..., object],
    parameters: dict[str, float],
    noise_std: float,
    policy: Policy,
    shape: ModelShape,
) -> Quote:
    guarantee = account(**parameters)
    gradients = int(parameters["steps"]) * shape.batch_size
    budget = policy.budget_epochs
    if budget is not None and gradients > budget * shape.retained:
        raise PlanError(
            f"the plan takes {gradients} gradients but budget_epochs allows "
            f"{math.floor(budget * shape.retained)}"
        )
    return Quote(
        mechanism=mechanism,
        parameters=parameters,
        guarantee=guarantee,  # type: ignore[arg-type]
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=noise_std,
    )
