"""Noisy gradient descent, non-convex losses: the rule of ``app.accounting.noisy_gd_nonconvex``."""

from app.accounting.noisy_gd_nonconvex import NAME, account
from app.domain.plan import Plan
from workers.mechanisms.descent import Descent, DescentRule

__all__ = ["NAME", "from_plan"]


def from_plan(plan: Plan) -> DescentRule:
    """Return the mechanism of a plan.

    Raises:
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    guarantee = account(**plan.parameters)
    steps = plan.parameters["unlearning_steps"]
    return DescentRule(
        descent=Descent.from_settings(plan.settings),
        steps=steps,
        account=lambda taken: guarantee if taken >= steps else None,
        dimension=plan.parameters["dimension"],
    )
