"""All update rules by name, the same names as in ``app.accounting.catalogue``."""

from collections.abc import Callable, Mapping

from app.domain.errors import PlanError
from app.domain.plan import Plan
from workers.mechanisms import gradient_clipping, model_clipping, output_perturbation
from workers.noisy_phase import Mechanism

_RULES: Mapping[str, Callable[[Plan], Mechanism]] = {
    gradient_clipping.NAME: gradient_clipping.GradientClipping.from_plan,
    model_clipping.NAME: model_clipping.ModelClipping.from_plan,
    output_perturbation.NAME: output_perturbation.OutputPerturbation.from_plan,
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
