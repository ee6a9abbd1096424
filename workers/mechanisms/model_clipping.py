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
from app.accounting.model_clipping import NAME, Odometer, account, separation_of
from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan
from workers.mechanisms.parameters import fill, require_dimension
from workers.mechanisms.vectors import clip_, move_
from workers.noise.generators import NoiseSource

__all__ = ["NAME", "ModelClipping", "ModelClippingRun"]


@dataclass(frozen=True)
class ModelClipping:
    """The mechanism with all its parameters, named as in the accountant.

    Attributes:
        epsilon: of the target; the guarantee is a point at this epsilon.
        initial_clip: C0, norm of the start.
        initial_noise_std: of the noise on the start; may be 0.
        model_clip: C2, norm of every iterate before its noise.
        noise_std: sigma, per coordinate and step.
        steps: how many steps the plan expects; a run never takes more.
        learning_rate, weight_decay: of the step; the guarantee does not depend on them.
        dimension: how many weights the plan was made for; None counts in real arithmetic.
    """

    epsilon: float
    initial_clip: float
    initial_noise_std: float
    model_clip: float
    noise_std: float
    steps: int
    learning_rate: float
    weight_decay: float
    dimension: int | None = None

    @classmethod
    def from_plan(cls, plan: Plan) -> "ModelClipping":
        """Return the mechanism of a plan.

        Raises:
            ParameterError: a parameter is missing, unknown or out of its range.
        """
        account(**plan.parameters)
        return fill(cls, {**plan.parameters, **plan.settings})

    def begin(
        self, position: torch.Tensor, *, noise: NoiseSource, epsilon: float, delta: float
    ) -> "ModelClippingRun":
        """Clip the start ``position`` (float64 [size]) in place, add its noise, return the run.

        Raises:
            TargetNotMetError: ``steps`` steps cannot meet (epsilon, delta). Nothing was changed.
            PlanError: the plan was made for another number of weights.
        """
        require_dimension(self.dimension, position)
        run = ModelClippingRun(self, noise=noise, epsilon=epsilon, delta=delta)
        clip_(position, self.initial_clip)
        if self.initial_noise_std > 0:
            noise.add_(position, self.initial_noise_std)
        return run


class ModelClippingRun:
    """One run: counts each step it takes and knows when the target is met."""

    def __init__(
        self, mechanism: ModelClipping, *, noise: NoiseSource, epsilon: float, delta: float
    ) -> None:
        planned = account(
            epsilon=mechanism.epsilon,
            initial_clip=mechanism.initial_clip,
            model_clip=mechanism.model_clip,
            noise_std=mechanism.noise_std,
            steps=mechanism.steps,
            initial_noise_std=mechanism.initial_noise_std,
            dimension=mechanism.dimension,
        )
        if mechanism.epsilon != epsilon or not planned.meets(epsilon=epsilon, delta=delta):
            raise TargetNotMetError(
                f"{mechanism.steps} steps reach delta = {planned.at_delta:.3g} at epsilon = "
                f"{planned.at_epsilon:.3g}, not the target: raise noise_std or steps"
            )
        self._separation = separation_of(
            mechanism.model_clip, mechanism.noise_std, dimension=mechanism.dimension
        )
        self._mechanism = mechanism
        self._noise = noise
        self._delta = delta
        self._odometer = Odometer(
            epsilon=mechanism.epsilon,
            initial_clip=mechanism.initial_clip,
            initial_noise_std=mechanism.initial_noise_std,
            dimension=mechanism.dimension,
        )

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._odometer.steps

    @property
    def met(self) -> bool:
        """Whether the steps taken meet the target."""
        return self._odometer.meets(delta=self._delta)

    def guarantee(self) -> PointGuarantee:
        """Return what the steps taken guarantee."""
        return self._odometer.guarantee()

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take one step in place.

        Args:
            position: u, float64 [size].
            gradient: g by u, float32 or float64 [size].
        """
        mechanism = self._mechanism
        contraction = 1 - mechanism.learning_rate * mechanism.weight_decay
        move_(position, gradient, contraction=contraction, rate=mechanism.learning_rate)
        clip_(position, mechanism.model_clip)
        self._noise.add_(position, mechanism.noise_std)
        self._odometer.step(self._separation)
