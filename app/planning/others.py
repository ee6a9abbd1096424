"""Quotes of retraining, of DP training, and of noisy descent on non-convex losses."""

import inspect
import math

from app.accounting import dp_sgd, noisy_gd_nonconvex, retraining
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.fixed import numbers
from app.planning.quote import Quote
from app.planning.shape import ModelShape

MOST_GRADIENTS = 1e12
_ASSERTED = ("smoothness", "loss_bound", "learning_rate", "weight_decay", "noise_std", "order")


def quote_retraining(policy: Policy, shape: ModelShape) -> Quote:
    """Quote one training from a fresh initialisation: exact, at the price of the recipe."""
    if policy.parameters:
        raise PlanError("retraining has no parameters")
    epochs = shape.recipe_epochs
    if policy.budget_epochs is not None and epochs > policy.budget_epochs:
        raise PlanError(
            f"one training takes {epochs:g} epochs but budget_epochs allows "
            f"{policy.budget_epochs:g}"
        )
    gradients = epochs * shape.steps_per_epoch * shape.batch_size
    return Quote(
        mechanism=retraining.NAME,
        parameters={},
        guarantee=retraining.account(),
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=0.0,
        surviving_information_bits=0.0,
    )


def quote_dp_sgd(policy: Policy, shape: ModelShape) -> Quote:
    """Quote no step at all, while the group guarantee of DP training still covers the request."""
    trained = shape.dp_training
    if trained is None:
        raise PlanError("needs a model that was trained with DP-SGD")
    if policy.parameters:
        raise PlanError("dp_sgd takes its parameters from the training")
    parameters = {
        "noise_multiplier": trained.noise_multiplier,
        "sampling_rate": trained.sampling_rate,
        "steps": trained.steps,
        "group_size": trained.forgotten,
    }
    guarantee = dp_sgd.account(**parameters)  # type: ignore[arg-type]
    if not guarantee.meets(epsilon=policy.epsilon, delta=policy.delta):
        raise PlanError(f"the group budget is spent: {trained.forgotten} records are forgotten")
    return Quote(
        mechanism=dp_sgd.NAME,
        parameters=parameters,
        guarantee=guarantee,
        certifying_gradients=0,
        gradient_computations=0,
        noise_per_coordinate=0.0,
    )


def quote_noisy_gd_nonconvex(policy: Policy, shape: ModelShape) -> Quote:
    """Quote non-convex noisy descent, whose step counts are astronomical for most networks."""
    fixed = numbers(policy.parameters)
    missing = [name for name in _ASSERTED if name not in fixed]
    if missing or shape.dimension is None:
        needed = [*missing, *(["dimension"] if shape.dimension is None else [])]
        raise PlanError(f"needs {', '.join(needed)}: the operator must vouch for these constants")
    sizes = {name: fixed[name] for name in _ASSERTED if name != "order"} | {
        "dimension": shape.dimension,
        "records": shape.retained,
        "request_size": int(fixed.get("request_size", 1)),
    }
    order = fixed["order"]
    divergence = policy.epsilon - math.log(1 / policy.delta) / (order - 1)
    if divergence <= 0:
        raise PlanError("order must be larger: the conversion alone exceeds epsilon")
    training, unlearning = noisy_gd_nonconvex.steps_needed(
        order=order,
        divergence=divergence,
        **sizes,  # type: ignore[arg-type]
    )
    gradients = float(unlearning) * shape.retained
    if gradients > MOST_GRADIENTS:
        raise PlanError(f"would take {gradients:.3g} gradients, more than {MOST_GRADIENTS:.3g}")
    parameters = sizes | {"training_steps": training, "unlearning_steps": unlearning}
    accepted = inspect.signature(noisy_gd_nonconvex.account).parameters
    guarantee = noisy_gd_nonconvex.account(
        **{name: value for name, value in parameters.items() if name in accepted}  # type: ignore[arg-type]
    )
    return Quote(
        mechanism=noisy_gd_nonconvex.NAME,
        parameters=parameters,
        guarantee=guarantee,
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=fixed["noise_std"] / math.sqrt(fixed["weight_decay"]),
    )
