"""Plans of runs that have not begun.

Planning may take seconds, so it is done before any lock is taken: its input is read in one
transaction, and the run is created in another, if the model has not changed since. The number of
records may change meanwhile. A run is planned again when it begins, on exactly the records that it
then fixes.
"""

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, InvalidInputError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.states import FirstRelease
from app.planning.planner import make_plan
from app.planning.shape import ModelShape
from app.registry.shapes import TrainingSet, shape_of
from app.registry.tables import ModelRow


class PlanMaker(Protocol):
    """Makes plans as ``planner.make_plan`` does, perhaps within limits."""

    def __call__(self, *, policy: Policy, shape: ModelShape) -> Plan:
        """Return the plan of one run."""


@dataclass(frozen=True)
class Occasion:
    """What a model's next run is planned on.

    Attributes:
        policy: what is promised.
        shape: the run's size.
        head_version_id: of the version that it starts from, if there is one.
    """

    policy: Policy
    shape: ModelShape
    head_version_id: str | None

    @classmethod
    def of(
        cls,
        session: Session,
        model: ModelRow,
        training_set: TrainingSet | None = None,
        *,
        policy: Policy | None = None,
        dimension: int | None = None,
    ) -> "Occasion":
        """Read it; no lock is needed.

        Args:
            session: of the transaction that reads.
            model: whose run it is.
            training_set: the model's, where the caller needs it too.
            policy: the one to try; by default the model's own.
            dimension: how many weights the network trains; without it the plan counts them in real
                arithmetic.
        """
        return cls(
            policy or Policy.from_json(model.policy),
            shape_of(session, model, training_set, dimension=dimension),
            model.head_version_id,
        )

    def forecast(self, make: PlanMaker = make_plan) -> "Forecast":
        """Make the plan; this may take seconds.

        Args:
            make: makes the plan, in this process or elsewhere.

        Raises:
            PlanError, ParameterError, CalibrationError: the policy cannot be met.
        """
        return Forecast(make(policy=self.policy, shape=self.shape), self)

    def fits(self, model: ModelRow) -> bool:
        """Return whether a model, which is locked now, is unchanged since it was read."""
        return (
            Policy.from_json(model.policy) == self.policy
            and model.head_version_id == self.head_version_id
        )


@dataclass(frozen=True)
class Forecast:
    """The plan of a run that has not begun, and what it was made for."""

    plan: Plan
    occasion: Occasion

    def require_tracked_start(self) -> None:
        """Check that a lineage which has to be tracked will be, from its training on.

        Raises:
            InvalidInputError: its policy has it trained and released without.
        """
        occasion, plan = self.occasion, self.plan
        as_trained = occasion.policy.first_release is FirstRelease.AS_TRAINED
        first = occasion.shape.earlier_releases == 0
        if first and plan.is_tracked and as_trained:
            raise InvalidInputError(
                f"{plan.mechanism} tracks its lineage from the start: use first_release certify or "
                "none"
            )

    def require_fit(self, model: ModelRow) -> None:
        """Check that a model, which is locked now, is unchanged since the plan was made.

        Raises:
            ConflictError: another call or run has changed it meanwhile.
        """
        if not self.occasion.fits(model):
            raise ConflictError(f"model {model.name!r} has changed meanwhile: try again")
