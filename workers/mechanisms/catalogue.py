"""All update rules by name, the same names as in ``app.accounting.catalogue``."""

from collections.abc import Callable, Mapping

from app.domain.errors import PlanError
from app.domain.plan import Plan
from workers.mechanisms.gradient_clipping import NAME as GRADIENT_CLIPPING
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.noisy_phase import Mechanism

_RULES: Mapping[str, Callable[[Mapping[str, float]], Mechanism]] = {
    GRADIENT_CLIPPING: GradientClipping.from_parameters,
}


def mechanism_for(plan: Plan) -> Mechanism:
    """Return the plan's update rule with its parameters.

    Raises:
        PlanError: this worker knows no such mechanism.
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    if plan.mechanism not in _RULES:
        raise PlanError(f"this worker knows no mechanism {plan.mechanism!r}: update it")
    return _RULES[plan.mechanism](plan.parameters)
