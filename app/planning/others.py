"""Quotes of retraining, and of training with differential privacy."""

from typing import Any

from app.accounting import dp_sgd, retraining
from app.domain.checks import require_positive
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.convex import refuse_unless_named
from app.planning.dp_sgd_work import refuse_slow_accounting, refuse_slow_calibration
from app.planning.fixed import only, whole_steps
from app.planning.lineage import new_lineage
from app.planning.quote import Quote
from app.planning.shape import DpTrainingShape, ModelShape

DEFAULT_GROUP = 10
DEFAULT_GRADIENT_CLIP = 1.0
_PRIVATE = ("noise_multiplier", "gradient_clip", "group_size")


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
    lineage = None if shape.convex is None else new_lineage(shape)
    return Quote(
        mechanism=retraining.NAME,
        parameters={},
        guarantee=retraining.account(),
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=0.0,
        surviving_information_bits=0.0,
        settings={} if lineage is None else lineage.settings,
        history=None if lineage is None else lineage.history,
    )


def quote_dp_sgd(policy: Policy, shape: ModelShape) -> Quote:
    """Quote a training with noise; then no step at all, while its group guarantee covers requests.

    Raises:
        PlanError: the lineage was trained without noise, or the group budget is spent.
    """
    refuse_unless_named(policy, dp_sgd.NAME)
    trained = shape.dp_training
    if trained is None:
        if not shape.is_new:
            raise PlanError("needs a lineage that was trained with DP-SGD from its start")
        trained = _training(policy, shape)
    if trained.noise_multiplier < dp_sgd.LEAST_NOISE_MULTIPLIER:
        raise PlanError(
            f"a noise_multiplier below {dp_sgd.LEAST_NOISE_MULTIPLIER:g} guarantees next to nothing"
        )
    training: dict[str, Any] = {
        "noise_multiplier": trained.noise_multiplier,
        "sampling_rate": trained.sampling_rate,
        "steps": trained.steps,
        "group_size": max(1, trained.forgotten),
    }
    refuse_slow_accounting(**training)
    parameters = training | _floats(shape)
    guarantee = dp_sgd.account(**parameters)
    if not guarantee.meets(epsilon=policy.epsilon, delta=policy.delta):
        if shape.dp_training is None:
            raise PlanError("this noise_multiplier misses the target: raise it, or leave it out")
        raise PlanError(f"the group budget is spent: {trained.forgotten} records are forgotten")
    gradients = 0.0 if shape.dp_training else trained.steps * trained.sampling_rate * shape.retained
    return Quote(
        mechanism=dp_sgd.NAME,
        parameters=parameters,
        guarantee=guarantee,
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=0.0,
        settings=_settings(policy, trained),
    )


def quote_private_retraining(policy: Policy, shape: ModelShape) -> Quote:
    """Quote a new training with DP-SGD, due when the group budget of the last one is spent."""
    trained = _training(policy, shape)
    gradients = trained.steps * trained.sampling_rate * shape.retained
    if policy.budget_epochs is not None and gradients > policy.budget_epochs * shape.retained:
        raise PlanError(
            f"the group budget is spent and a new training takes {shape.recipe_epochs:g} epochs, "
            f"but budget_epochs allows {policy.budget_epochs:g}"
        )
    return Quote(
        mechanism=retraining.NAME,
        parameters={},
        guarantee=retraining.account(),
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=0.0,
        surviving_information_bits=0.0,
        settings=_settings(policy, trained),
    )


def _floats(shape: ModelShape) -> dict[str, int]:
    """Return what the accountant needs to count floats, where it is known.

    ``records`` bounds a sample: the records that the present weights were trained on.
    """
    if shape.dimension is None:
        return {}
    return {"records": shape.trained_on, "dimension": shape.dimension}


def _training(policy: Policy, shape: ModelShape) -> DpTrainingShape:
    fixed = only(policy.parameters, *_PRIVATE)
    steps = max(1, round(shape.recipe_epochs * shape.steps_per_epoch))
    rate = min(1.0, shape.batch_size / shape.retained)
    multiplier = fixed.get("noise_multiplier")
    if multiplier is None:
        group = whole_steps(fixed, DEFAULT_GROUP, name="group_size")
        refuse_slow_calibration(
            epsilon=policy.epsilon,
            delta=policy.delta,
            sampling_rate=rate,
            steps=steps,
            group_size=group,
        )
        multiplier = dp_sgd.calibrate(
            epsilon=policy.epsilon,
            delta=policy.delta,
            sampling_rate=rate,
            steps=steps,
            group_size=group,
            **_floats(shape),
        )
    return DpTrainingShape(
        noise_multiplier=multiplier, sampling_rate=rate, steps=steps, forgotten=0
    )


def _settings(policy: Policy, trained: DpTrainingShape) -> dict[str, float]:
    clip = only(policy.parameters, *_PRIVATE).get("gradient_clip", DEFAULT_GRADIENT_CLIP)
    return {
        "noise_multiplier": trained.noise_multiplier,
        "sampling_rate": trained.sampling_rate,
        "private_steps": trained.steps,
        "gradient_clip": require_positive("gradient_clip", clip),
    }
