"""Full-batch noisy descent for losses that are not convex; the operator states their constants."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from app.accounting import noisy_gd_nonconvex
from app.accounting.guarantees import Guarantee
from app.domain.errors import PlanError
from app.domain.plan import Plan, TrainingKind
from app.domain.policy import Policy
from app.planning.mechanisms.mechanism import (
    AccountOf,
    Claim,
    Descending,
    Dimension,
    Draws,
    Mechanism,
    NoiseStd,
    Positive,
    Whole,
)
from app.planning.policy_parameters import only, refuse_above_budget
from app.planning.quote import Quote
from app.planning.shape import ModelShape

MOST_GRADIENTS = 1e12
_ASSERTED = ("smoothness", "loss_bound", "learning_rate", "weight_decay", "noise_std", "order")
# Of the target, what the noise may take where floats leave something, too.
_SHARES = (1.0, 0.98, 0.9, 0.75, 0.5)
# What a training was done with, and what later runs must keep to.
_CONSTANTS = ("smoothness", "loss_bound", "learning_rate", "weight_decay", "noise_std", "dimension")
# What each request may change.
_OF_REQUESTS = ("request_size", "unlearning_steps", "earlier_steps")

_Steps = Annotated[int, Field(ge=1, le=noisy_gd_nonconvex.MOST_STEPS)]


@dataclass(frozen=True, kw_only=True)
class NoisyGdNonconvex(Descending):
    """See ``app.accounting.noisy_gd_nonconvex``."""

    name: ClassVar[str] = noisy_gd_nonconvex.NAME

    learning_rate: Positive
    weight_decay: Positive
    smoothness: Positive
    loss_bound: Positive
    noise_std: NoiseStd
    dimension: Dimension
    records: Whole
    request_size: Whole
    training_steps: _Steps
    unlearning_steps: _Steps
    earlier_steps: Annotated[int, Field(ge=0, le=noisy_gd_nonconvex.MOST_STEPS)] = 0

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the steps, whose number is astronomical for most networks."""
        fixed = only(policy.parameters, *_ASSERTED, "request_size", "dimension")
        dimension = fixed.get("dimension", shape.dimension)
        missing = [name for name in _ASSERTED if name not in fixed]
        if missing or dimension is None:
            needed = [*missing, *(["dimension"] if dimension is None else [])]
            raise PlanError(
                f"needs {', '.join(needed)}: the operator must vouch for these constants"
            )
        cls._refuse_untrue(fixed["smoothness"], shape)
        tracking = shape.tracking
        if not (shape.is_new or (tracking is not None and tracking.mechanism == cls.name)):
            raise PlanError("needs a lineage that was trained by it from the start")
        trained = None if tracking is None else tracking.settings
        if trained is not None:
            _refuse_changes(trained, fixed | {"dimension": dimension})
        before = trained or {}
        sizes: dict[str, Any] = {name: fixed[name] for name in _ASSERTED if name != "order"} | {
            "dimension": int(dimension),
            "records": shape.trained_on,
            "request_size": max(
                int(fixed.get("request_size", 1)),
                shape.newly_forgotten,
                int(before.get("request_size", 1)),
            ),
        }
        earlier = int(before.get("earlier_steps", 0) + before.get("steps", 0))
        planned = cls._planned(policy, fixed["order"], sizes, earlier_steps=earlier)
        if trained is not None:
            planned = replace(planned, training_steps=int(trained["training_steps"]))
            if planned.unlearning_steps > trained["unlearning_steps"]:
                raise PlanError(
                    f"this target needs {planned.unlearning_steps} steps for each request, but a "
                    f"request before took {trained['unlearning_steps']:g}: train the model again"
                )
        return planned.offer(policy, shape)

    def offer(self, policy: Policy, shape: ModelShape) -> Quote:
        """Return the quote of these parameters, or raise ``PlanError`` where they do too little."""
        gradients = float(self.unlearning_steps) * shape.trained_on
        if gradients > MOST_GRADIENTS:
            raise PlanError(f"would take {gradients:.3g} gradients, more than {MOST_GRADIENTS:.3g}")
        refuse_above_budget(policy, shape, gradients)
        guarantee = self.account()
        if not guarantee.meets(**policy.target):
            raise PlanError("its training does not meet this target: train the model again")
        parameters = self.parameters()
        return self.quoted(
            guarantee,
            gradients,
            noise_per_coordinate=self.start_std,
            settings={
                **{name: parameters[name] for name in (*_CONSTANTS, "request_size")},
                "start_std": self.start_std,
                "batch_size": shape.trained_on,
                "batches": 1,
                "training_steps": self.training_steps,
                "steps": self.unlearning_steps,
                "unlearning_steps": self.unlearning_steps,
                "earlier_steps": self.earlier_steps,
            },
            training=TrainingKind.DESCENT,
        )

    @property
    def start_std(self) -> float:
        """The noise that training starts from, which is also that of a release."""
        return self.noise_std / math.sqrt(2 * self.learning_rate) / math.sqrt(self.weight_decay)

    def account(self) -> Guarantee:
        """Return what every release of the lineage guarantees."""
        return noisy_gd_nonconvex.account(**self.parameters())

    def account_by_step(self, plan: Plan) -> AccountOf:  # noqa: ARG002
        """Return the accountant of a run's steps: only all of them together guarantee something."""
        guarantee = self.account()
        return lambda taken: guarantee if taken >= self.unlearning_steps else None

    def taken(self, plan: Plan, steps: int) -> "NoisyGdNonconvex":  # noqa: ARG002
        """Return the parameters of a run that took ``steps`` steps."""
        return replace(self, unlearning_steps=steps)

    def counted(self) -> int:
        """Return how many weights the network has."""
        return self.dimension

    def draws(self, *, first: bool) -> list[Draws]:
        """Return the noise of a request's steps, and of the start and the training before them."""
        unlearning = Draws(self.noise_std, self.dimension * self.unlearning_steps)
        if not first:
            return [unlearning]
        training = Draws(self.noise_std, self.dimension * self.training_steps)
        return [Draws(self.start_std, self.dimension), training, unlearning]

    def goes_on_from(self, older: Mechanism) -> bool:
        """Return whether the training is the older one's, and no step of a request is gone."""
        if not isinstance(older, NoisyGdNonconvex):
            return True
        later = {name: getattr(self, name) for name in _OF_REQUESTS}
        return replace(older, **later) == self and older.earlier_steps <= self.earlier_steps

    def contradiction(self, claim: Claim) -> str | None:
        """Return that more records left than there were or requests hold, or that steps lack."""
        requests = claim.releases - 1
        if claim.forgotten > self.records:
            return "more records left its training than were in it"
        if claim.forgotten > requests * self.request_size:
            return "its requests are larger than stated"
        if self.earlier_steps < requests * self.unlearning_steps:
            return "earlier_steps are less than those of earlier requests"
        return None

    @classmethod
    def _refuse_untrue(cls, smoothness: float, shape: ModelShape) -> None:
        """Raise ``PlanError`` where a linear head's loss is known to be less smooth than stated."""
        if shape.rough is not None:
            raise PlanError(f"needs a bound on the loss's curvature: {shape.rough}")
        if shape.convex is None:
            return
        least = noisy_gd_nonconvex.capped_smoothness(shape.convex.smoothness)
        if smoothness < least:
            raise PlanError(
                f"smoothness must be at least {least:g}, which is proved of this head's loss under "
                "its bound"
            )

    @classmethod
    def _planned(
        cls, policy: Policy, order: float, sizes: Mapping[str, Any], *, earlier_steps: int
    ) -> "NoisyGdNonconvex":
        """Return all parameters; what floats leave takes a share of the target."""
        if order <= 1:
            raise PlanError("order must be above 1")
        # The Renyi divergence that the target leaves after its conversion.
        divergence = policy.epsilon - math.log(1 / policy.delta) / (order - 1)
        if divergence <= 0:
            raise PlanError("order must be larger: the conversion alone exceeds epsilon")
        for share in _SHARES:
            training, unlearning = noisy_gd_nonconvex.steps_needed(
                order=order, divergence=share * divergence, **sizes
            )
            planned = cls(
                **sizes,
                training_steps=training,
                unlearning_steps=unlearning,
                earlier_steps=earlier_steps,
            )
            if planned.account().meets(**policy.target):
                return planned
        raise PlanError("rounding leaves nothing of this target: raise epsilon or noise_std")


def _refuse_changes(trained: Mapping[str, float], fixed: Mapping[str, Any]) -> None:
    """Raise ``PlanError`` where a policy states other constants than those of the training."""
    for name in _CONSTANTS:
        if fixed[name] != trained[name]:
            raise PlanError(
                f"the lineage was trained with {name} {trained[name]:g}: another needs a new "
                "training"
            )
