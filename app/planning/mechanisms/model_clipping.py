"""Model clipping: every step clips the weights; the last step's noise is the release's."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from app.accounting import model_clipping
from app.accounting.guarantees import PointGuarantee
from app.domain.errors import PlanError
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.planning.mechanisms import any_start
from app.planning.mechanisms.mechanism import (
    Claim,
    Draws,
    NoiseStd,
    NoNoise,
    Positive,
    dimension_of,
)
from app.planning.policy_parameters import numbers, refuse_unknown, whole_steps
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class ModelClipping(any_start.AnyStart):
    """See ``app.accounting.model_clipping``; ``steps`` are expected, a run never takes more."""

    name: ClassVar[str] = model_clipping.NAME

    epsilon: Positive
    initial_clip: Positive
    model_clip: Positive
    noise_std: NoiseStd
    steps: Annotated[int, Field(ge=1, le=model_clipping.MOST_STEPS)]
    initial_noise_std: NoNoise | NoiseStd = 0.0

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the fewest steps that are enough."""
        any_start.budget_of(policy, shape)
        given = numbers(policy.parameters)
        fixed = {name: value for name, value in given.items() if name != "steps"}
        refuse_unknown(fixed, cls)
        sizes: dict[str, Any] = {
            "initial_clip": fixed.get("initial_clip", any_start.DEFAULT_INITIAL_CLIP),
            "model_clip": fixed.get("model_clip", any_start.INITIALISATION_STD),
            "noise_std": fixed.get("noise_std", any_start.INITIALISATION_STD),
            "initial_noise_std": fixed.get("initial_noise_std", 0.0),
            "dimension": shape.dimension,
        }
        needed = model_clipping.steps_needed(**policy.target, **sizes)
        steps = whole_steps(given, needed)
        if steps < needed:
            raise PlanError(f"these clips and noise need {needed} steps, not {steps}")
        chosen = cls(epsilon=policy.epsilon, **sizes, steps=steps)
        return chosen.offer(
            policy,
            shape,
            chosen.account(),
            steps=steps,
            variance=chosen.noise_std**2,
            settings={"learning_rate": any_start.DEFAULT_LEARNING_RATE, "weight_decay": 0.0},
        )

    def account(self) -> PointGuarantee:
        """Return the point (epsilon, delta) that all steps give."""
        names = (field.name for field in fields(ModelClipping))
        return model_clipping.account(**{name: getattr(self, name) for name in names})

    def taken(self, plan: Plan, steps: int) -> Self:  # noqa: ARG002
        """Return the parameters of a run that took ``steps`` steps."""
        return replace(self, steps=steps)

    def draws(self, *, first: bool) -> list[Draws]:  # noqa: ARG002
        """Return the start's noise, if it has any, and that of the steps."""
        dimension = dimension_of(self)
        steps = Draws(self.noise_std, dimension * self.steps)
        if self.initial_noise_std == 0:
            return [steps]
        return [Draws(self.initial_noise_std, dimension), steps]

    def contradiction(self, claim: Claim) -> str | None:
        """Return that the target has another epsilon, if it has."""
        return None if self.epsilon == claim.epsilon else "two epsilons"
