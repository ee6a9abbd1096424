"""Delete-to-Descent (Neel, Roth & Sharifi-Malvajerdi 2021), with the drift that really remains.

``tracked_release`` on the whole data at the largest step size, eta = 2 / (smoothness + 2
weight_decay): one step contracts by smoothness / (smoothness + 2 weight_decay), the paper's gamma.
Guarantee: mu-GDP, by ``accounting.histories.history_account``. Source: docs/guarantees.md, section
6.4.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from app.accounting.guarantees import GaussianGuarantee
from app.accounting.histories.history_account import HistoryAccountant
from app.accounting.histories.strong_convexity import largest_learning_rate
from app.accounting.terms import Terms
from app.domain.policy import Policy
from app.planning.mechanisms.tracked_release import TrackedRelease
from app.planning.policy_parameters import refuse_unless_named
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class DeleteToDescent(TrackedRelease):
    """Tracked release on the whole data, at the largest step size."""

    name: ClassVar[str] = "delete_to_descent"
    full_batch: ClassVar[bool] = True
    terms: ClassVar[Terms] = replace(
        TrackedRelease.terms,
        source="Neel, Roth & Sharifi-Malvajerdi 2021; " + TrackedRelease.terms.source,
    )

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote as tracked release does, where the policy names this mechanism."""
        refuse_unless_named(policy, cls, "trains on the whole data at once")
        return super().quote(policy, shape)

    def account(self) -> GaussianGuarantee:
        """Return what the history guarantees, by the accountant of tracked release."""
        return HistoryAccountant(self.history, TrackedRelease.terms).guarantee()

    @classmethod
    def own_learning_rate(cls, *, weight_decay: float, smoothness: float) -> float:
        """Return 2 / (smoothness + 2 weight_decay)."""
        return largest_learning_rate(weight_decay=weight_decay, smoothness=smoothness)
