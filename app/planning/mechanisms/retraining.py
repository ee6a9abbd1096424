"""Retraining: a new network, trained on only retained records."""

from dataclasses import dataclass, replace
from typing import ClassVar

from app.accounting import exact
from app.accounting.guarantees import ExactGuarantee
from app.accounting.terms import Terms
from app.domain.errors import PlanError
from app.domain.plan import TrainingKind
from app.domain.policy import Policy
from app.planning.lineage import new_lineage
from app.planning.mechanisms.mechanism import Mechanism
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class Retraining(Mechanism):
    """See ``app.accounting.exact``."""

    name: ClassVar[str] = "retraining"
    terms: ClassVar[Terms] = exact.RETRAINING
    trains_anew: ClassVar[bool] = True
    divides: ClassVar[bool] = True

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote one training from a fresh initialisation: exact, at the price of the recipe."""
        cls.require_allowed(policy, shape)
        head = shape.convex
        lineage = None if head is None or head.lipschitz is None else new_lineage(shape)
        quote = cls.offer(shape.gradients_of(shape.retained))
        if lineage is None:
            return quote
        return replace(
            quote,
            settings=lineage.settings,
            training=TrainingKind.DESCENT,
            history=lineage.history,
        )

    @classmethod
    def quote_run(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the run of a policy that names retraining, unless it would ignore an upload."""
        if not shape.trained_here and (shape.begins_again or shape.earlier_releases == 0):
            raise PlanError(
                "retraining begins with nothing and would ignore the uploaded weights: define the "
                'model with "weights": "train", or choose another mechanism'
            )
        return cls.quote(policy, shape)

    @classmethod
    def require_allowed(cls, policy: Policy, shape: ModelShape) -> None:
        """Raise ``PlanError`` if the policy does not allow one training."""
        if policy.parameters:
            raise PlanError(f"{cls.name} has no parameters")
        epochs = shape.passes
        if policy.budget_epochs is not None and epochs > policy.budget_epochs:
            raise PlanError(
                f"one training takes {epochs:g} epochs but budget_epochs allows "
                f"{policy.budget_epochs:g}"
            )

    @classmethod
    def offer(cls, gradients: float) -> Quote:
        """Return the quote of a training that takes so many gradients."""
        return cls().quoted(cls().account(), gradients, surviving_information_bits=0.0)

    def account(self) -> ExactGuarantee:
        """Return (0, 0)."""
        return ExactGuarantee(terms=self.terms)

    def counted(self) -> None:
        """Return None: the guarantee does not depend on the size of the network."""
