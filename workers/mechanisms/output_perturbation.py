"""Output perturbation: the update rule of ``app.accounting.output_perturbation``.

Koloskova et al. 2025, equation 1, in the reference frame: clip the start and add noise, once. No
gradient step is taken; all accuracy of the model then comes from fine-tuning.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from app.accounting.output_perturbation import NAME, account
from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan
from workers.mechanisms.parameters import fill, require_dimension
from workers.mechanisms.stepless import Stepless
from workers.mechanisms.vectors import clip_
from workers.noise.generators import NoiseSource

__all__ = ["NAME", "OutputPerturbation"]


@dataclass(frozen=True)
class OutputPerturbation:
    """The mechanism with all its parameters, named as in the accountant.

    Attributes:
        initial_clip: C0, norm of the start.
        noise_std: sigma, per coordinate.
        dimension: how many weights the plan was made for; None counts in real arithmetic.
    """

    steps: ClassVar[int] = 0

    initial_clip: float
    noise_std: float
    dimension: int | None = None

    @classmethod
    def from_plan(cls, plan: Plan) -> "OutputPerturbation":
        """Return the mechanism of a plan.

        Raises:
            ParameterError: a parameter is missing, unknown or out of its range.
        """
        account(**plan.parameters)
        return fill(cls, plan.parameters)

    def begin(
        self, position: torch.Tensor, *, noise: NoiseSource, epsilon: float, delta: float
    ) -> Stepless:
        """Clip ``position`` (float64 [size]) and add noise in place.

        Raises:
            TargetNotMetError: the noise does not meet (epsilon, delta). Nothing was changed.
            PlanError: the plan was made for another number of weights.
        """
        require_dimension(self.dimension, position)
        guarantee = account(
            initial_clip=self.initial_clip, noise_std=self.noise_std, dimension=self.dimension
        )
        if not guarantee.meets(epsilon=epsilon, delta=delta):
            raise TargetNotMetError("the noise does not meet the target: raise noise_std")
        clip_(position, self.initial_clip)
        noise.add_(position, self.noise_std)
        return Stepless(guarantee)
