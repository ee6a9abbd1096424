"""Quotes of full-batch noisy descent (Chourasia & Shah 2023), convex and not."""

import math
from collections.abc import Mapping
from typing import Any

from app.accounting import noisy_gd_convex, noisy_gd_nonconvex
from app.accounting.drift import Recipe
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.convex import refuse_above_budget, refuse_unless_named
from app.planning.fixed import only
from app.planning.lineage import TrackedLineage, lineage_of
from app.planning.quote import Quote
from app.planning.shape import ModelShape

MOST_GRADIENTS = 1e12
_CAPACITY_SHARE = 0.01
_CAPACITY_RELEASES = 10
_MOST_UNLEARNING_STEPS = 10_000_000
_ASSERTED = ("smoothness", "loss_bound", "learning_rate", "weight_decay", "noise_std", "order")


def quote_noisy_gd_convex(policy: Policy, shape: ModelShape) -> Quote:
    """Quote full-batch noisy gradient descent, which also protects the records still present.

    A new lineage takes the noise that forgets ``forgotten`` records (by default one in a hundred)
    in ``unlearning_steps`` steps (by default as many as training has), after ``earlier_releases``
    releases where requests adapt (by default 10). Later runs take the fewest steps that this noise
    allows.
    """
    fixed = only(
        policy.parameters, "noise_std", "unlearning_steps", "forgotten", "earlier_releases"
    )
    lineage = lineage_of(shape, full_batch=True)
    if lineage.noise_std is None and not policy.adaptive:
        refuse_unless_named(policy, noisy_gd_convex.NAME)
    noise_std = lineage.noise_std or _noise_for_capacity(policy, fixed, shape, lineage)
    job: dict[str, Any] = _job(lineage) | {
        "noise_std": noise_std,
        "forgotten": max(1, shape.forgotten),
    }
    if policy.adaptive:
        job["earlier_releases"] = shape.earlier_releases
    steps = _fewest_steps(policy, fixed, job)
    parameters = job | {"unlearning_steps": steps}
    gradients = steps * lineage.ledger.recipe.batch_size
    refuse_above_budget(policy, shape, gradients)
    return Quote(
        mechanism=noisy_gd_convex.NAME,
        parameters=parameters,
        guarantee=noisy_gd_convex.account(**parameters),
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=noise_std / math.sqrt(1 - lineage.ledger.recipe.contraction**2),
        settings=lineage.settings | {"noise_std": noise_std},
        ledger=lineage.ledger,
    )


def _job(lineage: TrackedLineage) -> dict[str, float]:
    recipe: Recipe = lineage.ledger.recipe
    return {
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "smoothness": recipe.smoothness,
        "lipschitz": recipe.lipschitz,
        "records": recipe.batch_size,
        # Whoever is forgotten now may have been there until the last step.
        "training_steps": lineage.ledger.steps,
    }


def _noise_for_capacity(
    policy: Policy, fixed: Mapping[str, float], shape: ModelShape, lineage: TrackedLineage
) -> float:
    if "noise_std" in fixed:
        return fixed["noise_std"]
    capacity = fixed.get("forgotten", max(1, round(shape.trained_on * _CAPACITY_SHARE)))
    releases = fixed.get("earlier_releases", _CAPACITY_RELEASES)
    return noisy_gd_convex.calibrate(
        epsilon=policy.epsilon,
        delta=policy.delta,
        **_job(lineage),  # type: ignore[arg-type]
        unlearning_steps=int(fixed.get("unlearning_steps", lineage.training_steps)),
        forgotten=int(capacity),
        earlier_releases=int(releases) if policy.adaptive else None,
    )


def _fewest_steps(policy: Policy, fixed: Mapping[str, float], job: dict[str, Any]) -> int:
    """Return the fewest unlearning steps that meet the target, or those that the policy fixes."""

    def meets(steps: int) -> bool:
        guarantee = noisy_gd_convex.account(**job, unlearning_steps=steps)
        return guarantee.meets(epsilon=policy.epsilon, delta=policy.delta)

    low, high = -1, int(fixed.get("unlearning_steps", 0))
    if not meets(_MOST_UNLEARNING_STEPS):
        raise PlanError(
            f"the lineage's noise cannot carry {job['forgotten']} forgotten records"
            + (f" over {job['earlier_releases']} releases" if policy.adaptive else "")
        )
    while not meets(high):
        low, high = high, min(2 * high + 1, _MOST_UNLEARNING_STEPS)
    if "unlearning_steps" in fixed and low < 0:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def quote_noisy_gd_nonconvex(policy: Policy, shape: ModelShape) -> Quote:
    """Quote non-convex noisy descent, whose step counts are astronomical for most networks."""
    fixed = only(policy.parameters, *_ASSERTED, "request_size", "dimension")
    dimension = fixed.get("dimension", shape.dimension)
    missing = [name for name in _ASSERTED if name not in fixed]
    if missing or dimension is None:
        needed = [*missing, *(["dimension"] if dimension is None else [])]
        raise PlanError(f"needs {', '.join(needed)}: the operator must vouch for these constants")
    if not (shape.is_new or _trained_for(shape, noisy_gd_nonconvex.NAME)):
        raise PlanError("needs a lineage that was trained by it from the start")
    sizes: dict[str, Any] = {name: fixed[name] for name in _ASSERTED if name != "order"} | {
        "dimension": int(dimension),
        "records": shape.trained_on,
        "request_size": max(1, int(fixed.get("request_size", 1)), shape.newly_forgotten),
    }
    training, unlearning = noisy_gd_nonconvex.steps_needed(
        order=fixed["order"], divergence=_divergence(policy, fixed["order"]), **sizes
    )
    if shape.tracking is not None:
        training = int(shape.tracking.settings["training_steps"])
    gradients = float(unlearning) * shape.trained_on
    if gradients > MOST_GRADIENTS:
        raise PlanError(f"would take {gradients:.3g} gradients, more than {MOST_GRADIENTS:.3g}")
    refuse_above_budget(policy, shape, gradients)
    parameters = sizes | {"training_steps": training, "unlearning_steps": unlearning}
    scale = fixed["noise_std"] / math.sqrt(2 * fixed["learning_rate"])
    return Quote(
        mechanism=noisy_gd_nonconvex.NAME,
        parameters=parameters,
        guarantee=noisy_gd_nonconvex.account(**parameters),
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=scale / math.sqrt(fixed["weight_decay"]),
        settings={
            "learning_rate": fixed["learning_rate"],
            "weight_decay": fixed["weight_decay"],
            "noise_std": fixed["noise_std"],
            "loss_bound": fixed["loss_bound"],
            "start_std": scale / math.sqrt(fixed["weight_decay"]),
            "batch_size": shape.trained_on,
            "batches": 1,
            "training_steps": training,
        },
    )


def _divergence(policy: Policy, order: float) -> float:
    """Return the Renyi divergence at ``order`` that the target leaves after its conversion."""
    if order <= 1:
        raise PlanError("order must be above 1")
    divergence = policy.epsilon - math.log(1 / policy.delta) / (order - 1)
    if divergence <= 0:
        raise PlanError("order must be larger: the conversion alone exceeds epsilon")
    return divergence


def _trained_for(shape: ModelShape, name: str) -> bool:
    return shape.tracking is not None and shape.tracking.mechanism == name
