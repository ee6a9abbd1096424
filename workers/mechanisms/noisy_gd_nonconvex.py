"""Noisy gradient descent, non-convex losses: the rule of ``app.accounting.noisy_gd_nonconvex``."""

from app.accounting.noisy_gd_nonconvex import NAME, account
from app.domain.plan import Plan
from workers.mechanisms.descent import Descent, NoisyDescent

__all__ = ["NAME", "from_plan"]


def from_plan(plan: Plan) -> NoisyDescent:
    """Return the mechanism of a plan.

    Raises:
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    account(**plan.parameters)
    return NoisyDescent(
        descent=Descent.from_settings(plan.settings),
        steps=plan.parameters["unlearning_steps"],
        account=lambda steps: account(**{**plan.parameters, "unlearning_steps": steps}),
        dimension=plan.parameters["dimension"],
    )
