"""Projected noisy SGD with all its noise counted: the rule of ``app.accounting.noisy_history``."""

from app.accounting.drift import DriftLedger
from app.accounting.guarantees import Guarantee
from app.accounting.noisy_history import NAME, account
from app.domain.plan import Plan
from workers.mechanisms.descent import Descent, NoisyDescent

__all__ = ["NAME", "from_plan"]


def from_plan(plan: Plan) -> NoisyDescent:
    """Return the mechanism of a plan, whose ledger ends with this run's steps.

    Raises:
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    before = DriftLedger.from_json(plan.ledger or {})
    noise_std = plan.parameters["noise_std"]

    def guarantee(steps: int) -> Guarantee:
        return account(ledger=before.after_steps(steps).to_json(), noise_std=noise_std)

    planned = DriftLedger.from_json(plan.parameters["ledger"])
    return NoisyDescent(
        descent=Descent.from_settings(plan.settings),
        steps=planned.steps - before.steps,
        account=guarantee,
    )
