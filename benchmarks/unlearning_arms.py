"""What is compared at one budget: retraining, three noisy mechanisms, and a control beside each.

A control skips the original model and every noisy step: it starts from Gaussian noise of the size
that the noisy phase ends with, in the same frame, and has as many steps left for fine-tuning. Where
both score the same, nothing of the original was used.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn

from app.accounting import gradient_clipping, model_clipping, output_perturbation
from app.domain.policy import Policy
from app.planning.planner import make_plan
from app.planning.shape import ModelShape
from benchmarks import paper_settings
from benchmarks.paper_settings import DELTA
from workers.mechanisms.catalogue import rule_of
from workers.training.frame import Centre, ReferenceFrame
from workers.training.noisy_phase import Rule

EPSILON: Final = 1.0
PLANNED: Final = "planned"
PUBLISHED: Final = "published"
METHODS: Final = (output_perturbation.NAME, gradient_clipping.NAME, model_clipping.NAME)

Factory = Callable[[], nn.Module]


@dataclass(frozen=True)
class Arm:
    """One line of the comparison.

    Attributes:
        method: ``retraining`` or a mechanism's name.
        settings: ``planned``, ours for the true target, or ``published``, the paper's.
        control: whether this is the random start beside the mechanism.
    """

    method: str
    settings: str = PLANNED
    control: bool = False


RETRAINING: Final = Arm("retraining")
OURS: Final = Arm(gradient_clipping.NAME)
OUR_CONTROL: Final = Arm(gradient_clipping.NAME, control=True)


@dataclass(frozen=True)
class NoisyPlan:
    """A mechanism with everything that it needs.

    Attributes:
        mechanism: the update rule.
        frame: where it works.
        epsilon: what it truly gives at delta = 1e-5.
        noisy_steps: that it takes.
        end_std: size of the noise at its end, per coordinate of the frame.
    """

    mechanism: Rule
    frame: ReferenceFrame = field(repr=False)
    epsilon: float
    noisy_steps: int
    end_std: float


def planned(method: str, *, factory: Factory, shape: ModelShape, budget: float) -> NoisyPlan:
    """Return our plan for the true target, with the planner's defaults, in the reference frame."""
    policy = Policy(epsilon=EPSILON, delta=DELTA, mechanism=method, budget_epochs=budget)
    plan = make_plan(policy=policy, shape=shape)
    mechanism = rule_of(plan)
    return NoisyPlan(
        mechanism=mechanism,
        frame=ReferenceFrame.of(factory),
        epsilon=EPSILON,
        noisy_steps=mechanism.steps,
        end_std=plan.predicted["noise_per_coordinate"],
    )


def published(method: str, *, factory: Factory, data: str, budget: float) -> NoisyPlan:
    """Return what the paper ran at this budget, in the coordinates of the weights themselves."""
    setting = paper_settings.setting(method, data=data, budget=budget)
    names = [name for name, _ in factory().named_parameters()]
    plain = ReferenceFrame(
        origin=Centre.INITIALISATION_MEAN,
        scale=dict.fromkeys(names, 1.0),
        centre={name: torch.zeros(()) for name in names},
    )
    return NoisyPlan(
        mechanism=setting.mechanism,
        frame=plain,
        epsilon=setting.epsilon,
        noisy_steps=setting.mechanism.steps,
        end_std=setting.end_std,
    )
