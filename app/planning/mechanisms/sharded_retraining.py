"""Sharded retraining: members of an ensemble that forgotten records concern are left out.

Or they are trained anew, at once or later: as the policy says.
"""

from dataclasses import dataclass
from typing import ClassVar

from app.accounting import exact
from app.accounting.terms import Terms
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.domain.states import Forgetting
from app.planning.mechanisms.mechanism import Needs
from app.planning.mechanisms.retraining import Retraining
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class ShardedRetraining(Retraining):
    """See ``app.accounting.exact``."""

    name: ClassVar[str] = "sharded_retraining"
    terms: ClassVar[Terms] = exact.SHARDED_RETRAINING
    needs: ClassVar[Needs] = Needs.ENSEMBLE

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the trainings: of all members of a new lineage, then as the policy forgets."""
        ensemble = shape.ensemble
        if ensemble is None:
            raise PlanError("needs an ensemble")
        cls.require_allowed(policy, shape)
        if not shape.trained_here:
            raise PlanError(
                "which records an uploaded network learned from is not known: define the model "
                'with "weights": "train"'
            )
        trained = ensemble.concerned
        if shape.is_new:
            trained = ensemble.members
        elif ensemble.refills:
            trained = ensemble.out
        elif policy.forget is Forgetting.LEAVE_OUT:
            left = ensemble.members - ensemble.out - ensemble.concerned
            trained = max(0, policy.fewest(ensemble.members) - left)
        return cls.offer(float(trained) * shape.gradients_of_member(ensemble.members))

    @classmethod
    def quote_run(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the run of a policy that names it."""
        return cls.quote(policy, shape)
