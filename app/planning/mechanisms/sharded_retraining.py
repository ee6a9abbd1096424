"""Sharded retraining: the members of an ensemble that forgotten records concern, trained anew."""

from dataclasses import dataclass
from typing import ClassVar

from app.accounting import exact
from app.accounting.terms import Terms
from app.domain.errors import PlanError
from app.domain.policy import Policy
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
        """Quote the trainings of the members concerned: all of a new lineage, one for a person."""
        ensemble = shape.ensemble
        if ensemble is None:
            raise PlanError("needs an ensemble")
        epochs = cls.epochs_of(policy, shape)
        if not shape.trained_here:
            raise PlanError(
                "which records an uploaded network learned from is not known: define the model "
                'with "weights": "train"'
            )
        concerned = float(ensemble.members) if shape.is_new else ensemble.concerned
        return cls.offer(concerned * epochs * ensemble.records_of_a_member(shape))

    @classmethod
    def quote_run(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the run of a policy that names it."""
        return cls.quote(policy, shape)
