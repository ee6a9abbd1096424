"""Output perturbation: the update rule of ``app.accounting.output_perturbation``.

Koloskova et al. 2025, equation 1, in the reference frame: clip the start and add noise, once. No
gradient step is taken; all accuracy of the model then comes from fine-tuning.
"""

from typing import ClassVar

import torch

from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan
from app.planning.mechanisms import output_perturbation as mechanism
from workers.mechanisms.dp_sgd import Stepless
from workers.training.noisy_phase import Conditions
from workers.training.vectors import clip_, require_dimension


class OutputPerturbation(mechanism.OutputPerturbation):
    """The mechanism with its rule."""

    steps: ClassVar[int] = 0

    def begin(self, position: torch.Tensor, conditions: Conditions) -> Stepless:
        """Clip ``position`` (float64 [size]) and add noise in place."""
        require_dimension(self.dimension, position, conditions.team)
        guarantee = self.account()
        if not guarantee.meets(epsilon=conditions.epsilon, delta=conditions.delta):
            raise TargetNotMetError("the noise does not meet the target: raise noise_std")
        clip_(position, self.initial_clip, conditions.team)
        conditions.noise.add_(position, self.noise_std)
        return Stepless(guarantee)


def from_plan(plan: Plan) -> OutputPerturbation:
    """Return the rule of a plan, or raise ``ParameterError``."""
    rule = OutputPerturbation.of(plan.parameters)
    rule.account()
    return rule
