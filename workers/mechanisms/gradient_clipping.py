"""Gradient clipping with regularisation: the update rule of ``app.accounting.gradient_clipping``.

Koloskova et al. 2025, equation 3, on one flat float64 buffer u in the reference frame
(docs/guarantees.md, section 3; g is the gradient by u, from retained records only):

    u <- clip(u, initial_clip)                                                       once
    u <- u - learning_rate (clip(g, gradient_clip) + weight_decay u) + N(0, noise_std^2 I)

All but initial_clip may vary by step; each step is then taken, and counted, with its own numbers.

Both clips are total functions. A gradient or a start that is not finite counts as zero: it is then
still some function of the iterate, bounded by the clip, and for such functions the theorem holds.
Stopping the run instead would publish a bit about an iterate that no guarantee covers yet; so would
reporting how often it happened. Fine-tuning afterwards meets the same fault, if it persists, where
it may be reported.

A step is computed in float64, with the contraction that was accounted for and clips rounded down;
noise comes last, and its sum is rounded to the public grid.
"""

import torch

from app.accounting.gradient_clipping import Odometer, step_size
from app.accounting.guarantees import GaussianGuarantee
from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan
from app.domain.schedules import at
from app.planning.mechanisms import gradient_clipping as mechanism
from workers.training.noisy_phase import Conditions
from workers.training.vectors import clip_, move_, require_dimension, shrinkage


class GradientClipping(mechanism.GradientClipping):
    """The mechanism with its rule."""

    def begin(self, position: torch.Tensor, conditions: Conditions) -> "GradientClippingRun":
        """Clip the start ``position`` (float64 [size]) in place and return the run."""
        require_dimension(self.dimension, position, conditions.team)
        run = GradientClippingRun(self, conditions)
        clip_(position, self.initial_clip, conditions.team)
        return run


def from_plan(plan: Plan) -> GradientClipping:
    """Return the rule of a plan, or raise ``ParameterError``."""
    rule = GradientClipping.of(plan.parameters)
    rule.account()
    return rule


class _Step:
    """The numbers of one step of a rule, counted from 0."""

    def __init__(self, rule: GradientClipping, step: int) -> None:
        self.noise_std = at(rule.noise_std, step)
        self.gradient_clip = at(rule.gradient_clip, step)
        self.learning_rate = at(rule.learning_rate, step)
        self.size = step_size(
            gradient_clip=self.gradient_clip,
            learning_rate=self.learning_rate,
            weight_decay=at(rule.weight_decay, step),
        )


class GradientClippingRun:
    """One run: counts each step it takes and knows when the target is met."""

    def __init__(self, rule: GradientClipping, conditions: Conditions) -> None:
        planned = rule.account()
        if not planned.meets(epsilon=conditions.epsilon, delta=conditions.delta):
            raise TargetNotMetError(
                f"{rule.steps} steps reach mu = {planned.mu:.6g} and not the target: raise "
                "noise_std or steps"
            )
        self._rule = rule
        self._every_step = None if rule.varies else _Step(rule, 0)
        self._conditions = conditions
        self._odometer = Odometer(initial_clip=rule.initial_clip, dimension=rule.dimension)

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._odometer.steps

    @property
    def met(self) -> bool:
        """Whether the steps taken meet the target."""
        target = self._conditions
        return self._odometer.meets(epsilon=target.epsilon, delta=target.delta)

    def guarantee(self) -> GaussianGuarantee:
        """Return what the steps taken guarantee."""
        return self._odometer.guarantee()

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take one step of ``position`` (float64 [size]) in place, by a gradient of any float."""
        step = self._every_step or _Step(self._rule, self.steps)
        rate = step.learning_rate * shrinkage(gradient, step.gradient_clip, self._conditions.team)
        move_(position, gradient, contraction=step.size.contraction, rate=rate)
        self._conditions.noise.add_(position, step.noise_std)
        self._odometer.step(step.size, step.noise_std)
