"""Sharded retraining: the members of an ensemble that forgotten records concern, trained anew."""

from dataclasses import dataclass
from typing import ClassVar

from app.accounting import sharded_retraining
from app.accounting.guarantees import ExactGuarantee
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.mechanisms.mechanism import Mechanism, Needs
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class ShardedRetraining(Mechanism):
    """See ``app.accounting.sharded_retraining``."""

    name: ClassVar[str] = sharded_retraining.NAME
    needs: ClassVar[Needs] = Needs.ENSEMBLE
    trains_anew: ClassVar[bool] = True

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the trainings of the members concerned: all of a new lineage, one for a person."""
        ensemble = shape.ensemble
        if ensemble is None:
            raise PlanError("needs an ensemble")
        if policy.parameters:
            raise PlanError(f"{cls.name} has no parameters")
        if not shape.trained_here:
            raise PlanError(
                "which records an uploaded network learned from is not known: define the model "
                'with "weights": "train"'
            )
        epochs = shape.recipe_epochs
        if policy.budget_epochs is not None and epochs > policy.budget_epochs:
            raise PlanError(
                f"one training takes {epochs:g} epochs but budget_epochs allows "
                f"{policy.budget_epochs:g}"
            )
        concerned = float(ensemble.members) if shape.is_new else ensemble.concerned
        gradients = concerned * epochs * ensemble.records_of_a_member(shape)
        return Quote(
            mechanism=cls.name,
            parameters={},
            guarantee=sharded_retraining.account(),
            certifying_gradients=gradients,
            gradient_computations=gradients,
            noise_per_coordinate=0.0,
            surviving_information_bits=0.0,
        )

    def account(self) -> ExactGuarantee:
        """Return (0, 0)."""
        return sharded_retraining.account()

    def counted(self) -> None:
        """Return None: the guarantee does not depend on the size of the network."""
