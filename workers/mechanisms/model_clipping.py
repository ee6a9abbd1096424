"""Model clipping: the update rule of ``app.accounting.model_clipping``.

Koloskova et al. 2025, equation 4, on one flat float64 buffer u in the reference frame (g is the
gradient by u, from retained records only):

    u <- clip(u, initial_clip) + N(0, initial_noise_std^2 I)                                  once
    u <- clip(u - learning_rate (g + weight_decay u), model_clip) + N(0, noise_std^2 I)

A vector that is not finite is clipped to zero, as in ``gradient_clipping`` and for its reasons.
"""

from dataclasses import dataclass

import torch

from app.accounting.guarantees import PointGuarantee
from app.accounting.model_clipping import Odometer, separation_of
from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan
from app.planning.mechanisms import model_clipping as mechanism
from workers.training.noisy_phase import Conditions
from workers.training.vectors import clip_, move_, require_dimension


@dataclass(frozen=True, kw_only=True)
class ModelClipping(mechanism.ModelClipping):
    """The mechanism with its rule.

    Attributes:
        learning_rate, weight_decay: of the step; the guarantee does not depend on them.
    """

    learning_rate: float
    weight_decay: float

    def begin(self, position: torch.Tensor, conditions: Conditions) -> "ModelClippingRun":
        """Clip the start ``position`` (float64 [size]) in place, add its noise, return the run."""
        require_dimension(self.dimension, position, conditions.team)
        run = ModelClippingRun(self, conditions)
        clip_(position, self.initial_clip, conditions.team)
        if self.initial_noise_std > 0:
            conditions.noise.add_(position, self.initial_noise_std)
        return run


def from_plan(plan: Plan) -> ModelClipping:
    """Return the rule of a plan, or raise ``ParameterError``."""
    rule = ModelClipping.of({**plan.parameters, **plan.settings})
    rule.account()
    return rule


class ModelClippingRun:
    """One run: counts each step it takes and knows when the target is met."""

    def __init__(self, rule: ModelClipping, conditions: Conditions) -> None:
        planned = rule.account()
        epsilon, delta = conditions.epsilon, conditions.delta
        if rule.epsilon != epsilon or not planned.meets(epsilon=epsilon, delta=delta):
            raise TargetNotMetError(
                f"{rule.steps} steps reach delta = {planned.at_delta:.3g} at epsilon = "
                f"{planned.at_epsilon:.3g}, not the target: raise noise_std or steps"
            )
        self._separation = separation_of(rule.model_clip, rule.noise_std, dimension=rule.dimension)
        self._rule = rule
        self._conditions = conditions
        self._odometer = Odometer(
            epsilon=rule.epsilon,
            initial_clip=rule.initial_clip,
            initial_noise_std=rule.initial_noise_std,
            dimension=rule.dimension,
        )

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._odometer.steps

    @property
    def met(self) -> bool:
        """Whether the steps taken meet the target."""
        return self._odometer.meets(delta=self._conditions.delta)

    def guarantee(self) -> PointGuarantee:
        """Return what the steps taken guarantee."""
        return self._odometer.guarantee()

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take one step of ``position`` (float64 [size]) in place, by a gradient of any float."""
        rule = self._rule
        contraction = 1 - rule.learning_rate * rule.weight_decay
        move_(position, gradient, contraction=contraction, rate=rule.learning_rate)
        clip_(position, rule.model_clip, self._conditions.team)
        self._conditions.noise.add_(position, rule.noise_std)
        self._odometer.step(self._separation)
