"""Quotes of the mechanisms for linear heads: here the drift is small, and forgetting is cheap."""

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from app.accounting import (
    delete_to_descent,
    langevin_unlearning,
    noisy_history,
    projected_noisy_sgd,
    tracked_release,
)
from app.accounting.drift import worst_case_drift
from app.accounting.strong_convexity import largest_learning_rate
from app.domain.checks import require_positive
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.fixed import only, whole_steps
from app.planning.lineage import TrackedLineage, head_of, lineage_of
from app.planning.quote import Quote
from app.planning.shape import ModelShape

# Per coordinate of a released head. Features have norm at most 1, so this is also how far the
# noise moves one logit.
DEFAULT_RELEASE_NOISE = 0.05
_NOISY = ("noise_std", "steps", "radius")


def quote_tracked_release(policy: Policy, shape: ModelShape) -> Quote:
    """Quote the fewest noise-free steps, often none, and one noisy release."""
    return _released(policy, shape, tracked_release, lineage_of(shape), {})


def quote_delete_to_descent(policy: Policy, shape: ModelShape) -> Quote:
    """Quote tracked release on the whole data at the largest step size."""
    head = head_of(shape)
    rate = largest_learning_rate(weight_decay=head.weight_decay, smoothness=head.smoothness)
    _refuse_under_auto(policy, delete_to_descent.NAME, "trains on the whole data at once")
    lineage = lineage_of(shape, full_batch=True, learning_rate=rate)
    return _released(policy, shape, delete_to_descent, lineage, {"learning_rate": rate})


def quote_projected_noisy_sgd(policy: Policy, shape: ModelShape) -> Quote:
    """Quote the steps that a lineage trained with noise must go on for."""
    lineage = _noisy_lineage(policy, shape, projected_noisy_sgd.NAME)
    return _noisy(policy, shape, projected_noisy_sgd, lineage)


def quote_langevin_unlearning(policy: Policy, shape: ModelShape) -> Quote:
    """Quote projected noisy SGD on the whole data at once."""
    lineage = _noisy_lineage(policy, shape, langevin_unlearning.NAME, full_batch=True)
    return _noisy(policy, shape, langevin_unlearning, lineage)


def quote_noisy_history(policy: Policy, shape: ModelShape) -> Quote:
    """Quote projected noisy SGD with the noise of the whole lineage counted."""
    fixed = only(policy.parameters, *_NOISY)
    lineage = _noisy_lineage(policy, shape, noisy_history.NAME)
    noise_std = _step_noise(fixed, lineage)
    needed = noisy_history.steps_needed(
        epsilon=policy.epsilon,
        delta=policy.delta,
        ledger=lineage.ledger.to_json(),
        noise_std=noise_std,
    )
    steps = _at_least(whole_steps(fixed, needed), needed)
    planned = lineage.ledger.after_steps(steps).to_json()
    parameters = {"ledger": planned, "noise_std": noise_std}
    return _quote(noisy_history, parameters, steps, noise_std, policy, shape, lineage, noise_std)


def refuse_unless_named(policy: Policy, name: str) -> None:
    """Raise ``PlanError`` under ``auto``: a lineage takes its noise from the first step."""
    _refuse_under_auto(policy, name, "needs its noise from the first step of training")


def _step_noise(fixed: Mapping[str, float], lineage: TrackedLineage) -> float:
    """Return the noise of one step: the lineage's, or for a new one the operator's or a default.

    By default the noise that steps leave in a release in the long run is the default release noise.
    """
    if lineage.noise_std is not None:
        if lineage.noise_std == 0:
            raise PlanError("the lineage was trained without noise; use tracked_release")
        return lineage.noise_std
    rate = lineage.ledger.recipe.contraction
    default = DEFAULT_RELEASE_NOISE * math.sqrt(1 - rate**2)
    return require_positive("noise_std", fixed.get("noise_std", default))


def refuse_above_budget(policy: Policy, shape: ModelShape, gradients: float) -> None:
    """Raise ``PlanError`` where a run would take more gradients than the budget allows."""
    budget = policy.budget_epochs
    if budget is not None and gradients > budget * shape.retained:
        raise PlanError(
            f"the plan takes {gradients:.0f} gradients but budget_epochs allows "
            f"{math.floor(budget * shape.retained)}"
        )


def _noisy_lineage(
    policy: Policy, shape: ModelShape, name: str, *, full_batch: bool = False
) -> TrackedLineage:
    fixed = only(policy.parameters, *_NOISY)
    lineage = lineage_of(shape, full_batch=full_batch, radius=fixed.get("radius"))
    if lineage.noise_std is None:
        refuse_unless_named(policy, name)
    return lineage


def _noisy(
    policy: Policy, shape: ModelShape, accountant: ModuleType, lineage: TrackedLineage
) -> Quote:
    fixed = only(policy.parameters, *_NOISY)
    noise_std = _step_noise(fixed, lineage)
    job = lineage.job | {"noise_std": noise_std}
    needed = accountant.steps_needed(epsilon=policy.epsilon, delta=policy.delta, **job)
    steps = _at_least(whole_steps(fixed, needed), needed)
    released = noise_std / math.sqrt(1 - lineage.ledger.recipe.contraction**2)
    parameters = job | {"steps": steps}
    return _quote(accountant, parameters, steps, released, policy, shape, lineage, noise_std)


def _released(
    policy: Policy,
    shape: ModelShape,
    accountant: ModuleType,
    lineage: TrackedLineage,
    implied: dict[str, float],
) -> Quote:
    """Quote steps and release noise; of the two, whichever the operator fixed decides the other.

    What is in ``implied`` the accountant derives for itself.
    """
    fixed = only(policy.parameters, "noise_std", "steps")
    target = {"epsilon": policy.epsilon, "delta": policy.delta}
    job = {name: value for name, value in lineage.job.items() if name not in implied}
    noise_std = fixed.get("noise_std")
    if noise_std is None and "steps" in fixed:
        drift = lineage.drift or worst_case_drift(recipe=lineage.ledger.recipe)
        noise_std = accountant.calibrate(
            **target, **job | {"drift": drift, "steps": whole_steps(fixed, 0)}
        )
    noise_std = DEFAULT_RELEASE_NOISE if noise_std is None else noise_std
    needed = accountant.steps_needed(**target, **job, noise_std=noise_std)
    steps = _at_least(whole_steps(fixed, needed), needed)
    parameters = job | {"noise_std": noise_std, "steps": steps}
    return _quote(accountant, parameters, steps, noise_std, policy, shape, lineage, 0.0)


def _quote(
    accountant: ModuleType,
    parameters: dict[str, Any],
    steps: int,
    released_noise_std: float,
    policy: Policy,
    shape: ModelShape,
    lineage: TrackedLineage,
    step_noise_std: float,
) -> Quote:
    account: Callable[..., Any] = accountant.account
    gradients = steps * lineage.ledger.recipe.batch_size
    refuse_above_budget(policy, shape, gradients)
    return Quote(
        mechanism=accountant.NAME,
        parameters=parameters,
        guarantee=account(**parameters),
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=released_noise_std,
        settings=lineage.settings | ({"noise_std": step_noise_std} if step_noise_std else {}),
        ledger=lineage.ledger,
    )


def _at_least(steps: int, needed: int) -> int:
    if steps < needed:
        raise PlanError(f"this noise needs {needed} steps, not {steps}")
    return steps


def _refuse_under_auto(policy: Policy, name: str, why: str) -> None:
    if policy.mechanism != name:
        raise PlanError(f"{why}: name it in the policy")
