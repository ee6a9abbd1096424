"""Quotes of full-batch noisy descent (Chourasia & Shah 2023), convex and not."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.accounting import noisy_gd_convex, noisy_gd_nonconvex
from app.accounting.histories.history import Forget, Release, Steps
from app.accounting.histories.history_account import Outlook
from app.accounting.search import smallest_noise
from app.domain.checks import require_positive
from app.domain.errors import ParameterError, PlanError
from app.domain.policy import Policy
from app.planning.convex import (
    DEFAULT_RELEASE_NOISE,
    fewest_steps,
    quote_of_run,
    refuse_above_budget,
    refuse_unless_named,
    refuse_without_noise,
    step_noise,
)
from app.planning.fixed import only, whole_steps
from app.planning.lineage import TrackedLineage, lineage_of
from app.planning.quote import Quote
from app.planning.shape import ModelShape

MOST_GRADIENTS = 1e12
_CAPACITY_SHARE = 0.01
_CAPACITY_RELEASES = 10
_MOST_RELEASES = 5000
_ASSERTED = ("smoothness", "loss_bound", "learning_rate", "weight_decay", "noise_std", "order")
# Of the target, what non-convex descent may take where floats leave something, too.
_SHARES = (1.0, 0.98, 0.9, 0.75, 0.5)
# What a training with non-convex losses was done with, and what later runs must keep to.
_CONSTANTS = ("smoothness", "loss_bound", "learning_rate", "weight_decay", "noise_std", "dimension")


def quote_noisy_gd_convex(policy: Policy, shape: ModelShape) -> Quote:
    """Quote full-batch noisy gradient descent, which also protects the records still present.

    A new lineage takes the noise that forgets ``forgotten`` records (by default one in a hundred)
    in ``unlearning_steps`` steps: by default as many as training has; where requests adapt none,
    after ``earlier_releases`` releases (by default 10). Later runs take the fewest steps with which
    the noise of the whole history is enough.
    """
    fixed = only(
        policy.parameters, "noise_std", "unlearning_steps", "forgotten", "earlier_releases"
    )
    lineage = lineage_of(shape, full_batch=True)
    if lineage.is_new and not policy.adaptive:
        refuse_unless_named(policy, noisy_gd_convex.NAME)
    refuse_without_noise(lineage)
    if policy.adaptive and lineage.history.releases != shape.earlier_releases:
        raise PlanError(
            "the model was trained again: its releases before that are not in this history, so "
            "requests must not depend on them"
        )
    noise_std = _noise_std(policy, fixed, shape, lineage)
    steps = _steps(policy, fixed, lineage, noise_std)
    quote = quote_of_run(
        policy,
        shape,
        noisy_gd_convex.NAME,
        noisy_gd_convex.TERMS,
        lineage,
        steps=steps,
        step_noise_std=noise_std,
    )
    if not policy.adaptive:
        return quote
    releases = {"earlier_releases": shape.earlier_releases}
    return replace(quote, parameters={**quote.parameters, **releases})


def _noise_std(
    policy: Policy, fixed: Mapping[str, float], shape: ModelShape, lineage: TrackedLineage
) -> float:
    if "noise_std" in fixed:
        return require_positive("noise_std", fixed["noise_std"])
    if not lineage.is_new:
        return step_noise(lineage)
    capacity = fixed.get("forgotten", max(1, round(shape.trained_on * _CAPACITY_SHARE)))
    releases = int(fixed.get("earlier_releases", _CAPACITY_RELEASES)) if policy.adaptive else 1
    steps = whole_steps(
        fixed, 0 if policy.adaptive else lineage.training_steps, name="unlearning_steps"
    )

    if releases > _MOST_RELEASES:
        raise PlanError(f"earlier_releases must be at most {_MOST_RELEASES}")

    def meets(noise_std: float) -> bool:
        trained = lineage.trained(noise_std=noise_std).after_release()
        run = (Steps(steps, noise_std), Release()) if steps else (Release(),)
        request = Forget(((0, int(capacity)),))
        try:
            outlook = Outlook(
                replace(trained, events=(*trained.events, *run * (releases - 1), request)),
                noisy_gd_convex.TERMS,
                adaptive=policy.adaptive,
            )
            return outlook.meets(
                epsilon=policy.epsilon, delta=policy.delta, steps=steps, noise_std=noise_std
            )
        except ParameterError as error:
            if error.name != "noise_std":
                raise
            return False  # so little noise is none that floats could add

    return smallest_noise(meets, scale=DEFAULT_RELEASE_NOISE)


def _steps(
    policy: Policy, fixed: Mapping[str, float], lineage: TrackedLineage, noise_std: float
) -> int:
    """Return the fewest unlearning steps that meet the target, or those that the policy fixes."""
    outlook = Outlook(
        lineage.trained(noise_std=noise_std), noisy_gd_convex.TERMS, adaptive=policy.adaptive
    )

    def meets(steps: int) -> bool:
        return outlook.meets(
            epsilon=policy.epsilon, delta=policy.delta, steps=steps, noise_std=noise_std
        )

    least = whole_steps(fixed, 0, name="unlearning_steps")
    if policy.adaptive and not meets(least):  # more steps would not help
        raise PlanError(
            f"the lineage's noise cannot carry {lineage.history.forgotten()} forgotten records "
            f"over {lineage.history.releases} releases"
        )
    return fewest_steps(meets, least=least)


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
    trained = None if shape.tracking is None else shape.tracking.settings
    if trained is not None:
        _refuse_changes(trained, fixed | {"dimension": dimension})
    sizes: dict[str, Any] = {name: fixed[name] for name in _ASSERTED if name != "order"} | {
        "dimension": int(dimension),
        "records": shape.trained_on,
        "request_size": max(
            int(fixed.get("request_size", 1)),
            shape.newly_forgotten,
            int((trained or {}).get("request_size", 1)),
        ),
    }
    earlier = int((trained or {}).get("earlier_steps", 0) + (trained or {}).get("steps", 0))
    training, unlearning = _steps_of_nonconvex(policy, fixed["order"], sizes, earlier_steps=earlier)
    if trained is not None:
        training = int(trained["training_steps"])
        if unlearning > trained["unlearning_steps"]:
            raise PlanError(
                f"this target needs {unlearning} steps for each request, but a request before "
                f"took {trained['unlearning_steps']:g}: train the model again"
            )
    gradients = float(unlearning) * shape.trained_on
    if gradients > MOST_GRADIENTS:
        raise PlanError(f"would take {gradients:.3g} gradients, more than {MOST_GRADIENTS:.3g}")
    refuse_above_budget(policy, shape, gradients)
    parameters = sizes | {
        "training_steps": training,
        "unlearning_steps": unlearning,
        "earlier_steps": earlier,
    }
    guarantee = noisy_gd_nonconvex.account(**parameters)
    if not guarantee.meets(epsilon=policy.epsilon, delta=policy.delta):
        raise PlanError("its training does not meet this target: train the model again")
    scale = fixed["noise_std"] / math.sqrt(2 * fixed["learning_rate"])
    return Quote(
        mechanism=noisy_gd_nonconvex.NAME,
        parameters=parameters,
        guarantee=guarantee,
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=scale / math.sqrt(fixed["weight_decay"]),
        settings={
            **{name: sizes[name] for name in (*_CONSTANTS, "request_size")},
            "start_std": scale / math.sqrt(fixed["weight_decay"]),
            "batch_size": shape.trained_on,
            "batches": 1,
            "training_steps": training,
            "steps": unlearning,
            "unlearning_steps": unlearning,
            "earlier_steps": earlier,
        },
    )


def _steps_of_nonconvex(
    policy: Policy, order: float, sizes: Mapping[str, Any], *, earlier_steps: int
) -> tuple[int, int]:
    """Return the steps of training and of a request; what floats leave takes a share of the target.

    Raises:
        PlanError: no share is enough.
    """
    divergence = _divergence(policy, order)
    for share in _SHARES:
        training, unlearning = noisy_gd_nonconvex.steps_needed(
            order=order, divergence=share * divergence, **sizes
        )
        guarantee = noisy_gd_nonconvex.account(
            **sizes,
            training_steps=training,
            unlearning_steps=unlearning,
            earlier_steps=earlier_steps,
        )
        if guarantee.meets(epsilon=policy.epsilon, delta=policy.delta):
            return training, unlearning
    raise PlanError("rounding leaves nothing of this target: raise epsilon or noise_std")


def _refuse_changes(trained: Mapping[str, float], fixed: Mapping[str, Any]) -> None:
    """Raise ``PlanError`` where a policy states other constants than those of the training."""
    for name in _CONSTANTS:
        if fixed[name] != trained[name]:
            raise PlanError(
                f"the lineage was trained with {name} {trained[name]:g}: another needs a new "
                "training"
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
