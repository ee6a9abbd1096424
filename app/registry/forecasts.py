"""Plans of runs that have not begun.

Planning may take seconds, so it happens before any lock is taken: one transaction reads its input,
another creates the run if the model has not changed since. The number of records may change
meanwhile; a run is planned again when it begins, on exactly the records it then fixes.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, InvalidInputError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.states import FirstRelease
from app.planning.planner import make_plan
from app.planning.shape import ModelShape
from app.registry.counts import Lineage
from app.registry.shapes import Counted, shape_of
from app.registry.tables import ModelRow


class PlanMaker(Protocol):
    """Makes plans as ``planner.make_plan`` does, possibly within limits."""

    def __call__(self, *, policy: Policy, shape: ModelShape) -> Plan:
        """Return the plan of one run."""


@dataclass(frozen=True)
class Occasion:
    """The input for planning a model's next run; ``head_version_id`` is what it starts from."""

    policy: Policy
    shape: ModelShape
    head_version_id: str | None

    @classmethod
    def of(
        cls,
        session: Session,
        model: ModelRow,
        lineage: Counted | None = None,
        *,
        policy: Policy | None = None,
        dimension: int | None = None,
        anew: bool = False,
        refills: bool = False,
    ) -> "Occasion":
        """Read it; no lock is needed.

        Without a ``dimension`` the plan counts weights in real arithmetic; ``anew`` is for a run
        that trains a new lineage, whatever there is, and ``refills`` for one of an ensemble that
        trains the members that are out. The model's ``lineage`` is as its counts are kept, unless
        another one is given: what a run does may follow from those records alone that it may learn
        from.
        """
        if lineage is None and not anew:
            lineage = Lineage.of(session, model)
        shape = shape_of(session, model, lineage, dimension=dimension, anew=anew)
        if shape.ensemble is not None:
            shape = replace(shape, ensemble=replace(shape.ensemble, refills=refills))
        return cls(policy or Policy.from_json(model.policy), shape, model.head_version_id)

    def forecast(self, make: PlanMaker = make_plan) -> "Forecast":
        """Make the plan; this may take seconds.

        Raises:
            PlanError, ParameterError, CalibrationError: the policy cannot be met.
        """
        return Forecast(make(policy=self.policy, shape=self.shape), self)

    def fits(self, model: ModelRow) -> bool:
        """Return whether the locked model is unchanged since it was read."""
        return (
            Policy.from_json(model.policy) == self.policy
            and model.head_version_id == self.head_version_id
        )


@dataclass(frozen=True)
class Forecast:
    """The plan of a run that has not begun, and its input."""

    plan: Plan
    occasion: Occasion

    def require_tracked_start(self) -> None:
        """Check that a lineage that must be tracked is tracked from its training on.

        Raises:
            InvalidInputError: its policy trains and releases it without tracking.
        """
        occasion, plan = self.occasion, self.plan
        as_trained = occasion.policy.first_release is FirstRelease.AS_TRAINED
        if occasion.shape.is_new and plan.is_tracked and as_trained:
            raise InvalidInputError(
                f"{plan.mechanism} tracks its lineage from the start: use first_release certify or "
                "none"
            )

    def require_fit(self, model: ModelRow) -> None:
        """Check that the model is unchanged since the plan was made, or raise ``ConflictError``."""
        if not self.occasion.fits(model):
            raise ConflictError(f"model {model.name!r} has changed meanwhile: try again")
