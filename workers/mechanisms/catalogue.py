"""All update rules by name, the same names as in ``app.accounting.catalogue``."""

from collections.abc import Callable, Mapping

from app.accounting import (
    delete_to_descent,
    langevin_unlearning,
    noisy_gd_convex,
    projected_noisy_sgd,
    tracked_release,
)
from app.domain.errors import PlanError
from app.domain.plan import Plan
from workers.mechanisms import (
    descent,
    dp_sgd,
    gradient_clipping,
    model_clipping,
    noisy_gd_nonconvex,
    output_perturbation,
)
from workers.noisy_phase import Mechanism

_RULES: Mapping[str, Callable[[Plan], Mechanism]] = {
    gradient_clipping.NAME: gradient_clipping.GradientClipping.from_plan,
    model_clipping.NAME: model_clipping.ModelClipping.from_plan,
    output_perturbation.NAME: output_perturbation.OutputPerturbation.from_plan,
    tracked_release.NAME: descent.from_plan,
    delete_to_descent.NAME: descent.from_plan,
    projected_noisy_sgd.NAME: descent.from_plan,
    langevin_unlearning.NAME: descent.from_plan,
    noisy_gd_convex.NAME: descent.from_plan,
    noisy_gd_nonconvex.NAME: noisy_gd_nonconvex.from_plan,
    dp_sgd.NAME: dp_sgd.DpSgd.from_plan,
}


def mechanism_for(plan: Plan) -> Mechanism:
    """Return the plan's update rule with its parameters.

    Raises:
        PlanError: this worker knows no such mechanism.
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    if plan.mechanism not in _RULES:
        raise PlanError(f"this worker knows no mechanism {plan.mechanism!r}: update it")
    return _RULES[plan.mechanism](plan)
