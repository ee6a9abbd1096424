"""Tracked release: the update rule of ``app.accounting.tracked_release``."""

from app.accounting.tracked_release import NAME, account
from app.domain.plan import Plan
from workers.mechanisms.descent import Descent, ReleasedDescent

__all__ = ["NAME", "from_plan"]


def from_plan(plan: Plan) -> ReleasedDescent:
    """Return the mechanism of a plan.

    Raises:
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    account(**plan.parameters)
    return ReleasedDescent(
        descent=Descent.from_settings(plan.settings),
        release_noise_std=plan.parameters["noise_std"],
        steps=plan.parameters["steps"],
        account=lambda steps: account(**{**plan.parameters, "steps": steps}),
    )
