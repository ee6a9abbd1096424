"""One forget request, and how retraining, three noisy mechanisms and their controls answer it.

A control skips the original model and every noisy step: it starts from Gaussian noise of the size
that the noisy phase ends with, in the same frame, and has as many steps left for fine-tuning. Where
both score the same, nothing of the original was used.

A noisy arm takes the same road as the service: planned for the target, ``Sealed`` weights, the
noisy phase in the reference frame, fine-tuning with what is left of the budget. As there,
initialisation, order of the batches and noise come from the operating system's entropy: only who is
forgotten has a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import nn

from app.accounting import gradient_clipping, model_clipping, output_perturbation
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipes.recipe import TrainingRecipe
from app.planning.planner import make_plan
from app.planning.shape import ModelShape
from benchmarks.data import Pictures, network_of
from workers.mechanisms.catalogue import rule_of
from workers.noise.generators import SecureNoise
from workers.seal.sealed import Certified, Sealed
from workers.training.feeds import RandomBatches
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network, Tensors

EPSILON: Final = 1.0
DELTA: Final = 1e-5
METHODS: Final = (output_perturbation.NAME, gradient_clipping.NAME, model_clipping.NAME)
FORGOTTEN_SHARE: Final = 0.1


@dataclass(frozen=True)
class Arm:
    """One line of the comparison.

    Attributes:
        method: ``retraining`` or a mechanism's name.
        control: whether this is the random start beside the mechanism.
    """

    method: str
    control: bool = False


RETRAINING: Final = Arm("retraining")
OURS: Final = Arm(gradient_clipping.NAME)
OUR_CONTROL: Final = Arm(gradient_clipping.NAME, control=True)


@dataclass(frozen=True)
class Outcome:
    """What one run of one arm gave.

    Attributes:
        accuracy: on the test pictures, at the end of the budget.
        epsilon: at delta = 1e-5; 0 for retraining.
        noisy_steps: taken, or left out by a control.
        end_std: size of the noise at the end of the noisy phase; 0 for retraining.
    """

    accuracy: float
    epsilon: float = 0.0
    noisy_steps: int = 0
    end_std: float = 0.0


class Case:
    """A request to forget a random tenth of the training pictures.

    Args:
        pictures: the data set, on the device where everything happens.
        recipe: of every training and fine-tuning; its schedule spans what is left of the budget.
        seed: says who is forgotten.
    """

    def __init__(self, pictures: Pictures, recipe: TrainingRecipe, *, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(pictures.train))
        self._pictures = pictures
        self._recipe = recipe
        self._retain = pictures.train.select(order[int(len(order) * FORGOTTEN_SHARE) :])
        self._steps_per_epoch = self._retain.steps_per_epoch(recipe.batch_size)
        self._original: Tensors = {}

    def train_original(self, *, epochs: float) -> float:
        """Train the original on all training pictures; return its accuracy."""
        network = Network(self._factory, device=self._retain.device)
        network.train(self._pictures.train, self._recipe, epochs=epochs)
        self._original = network.tensors()
        return network.evaluate(self._pictures.test).score

    def run(self, arm: Arm, *, budget: float) -> Outcome:
        """Answer the request within ``budget`` epochs of the retained pictures."""
        if arm == RETRAINING:
            return Outcome(self._tune(self._fresh(), 0, budget))
        shape = ModelShape(
            retained=len(self._retain),
            batch_size=self._recipe.batch_size,
            recipe_epochs=self._recipe.epochs,
        )
        policy = Policy(epsilon=EPSILON, delta=DELTA, mechanism=arm.method, budget_epochs=budget)
        plan = make_plan(policy=policy, shape=shape)
        steps, end_std = rule_of(plan).steps, plan.predicted["noise_per_coordinate"]
        frame = ReferenceFrame.of(self._factory)
        start: Network | Certified
        if arm.control:
            start = self._fresh()
            noise = end_std * torch.randn_like(start.flat.values)
            frame.on(start.flat).weights_at(noise, out=start.flat.held)
        else:
            start = self._unlearned(plan, frame)
        return Outcome(self._tune(start, steps, budget), EPSILON, steps, end_std)

    def _unlearned(self, plan: Plan, frame: ReferenceFrame) -> Certified:
        sealed = Sealed(self._factory, epsilon=EPSILON, delta=DELTA, device=self._retain.device)
        sealed.load(self._original)
        rule, feed = rule_of(plan), RandomBatches(self._retain, self._recipe.batch_size)
        sealed.unlearn(rule, feed, frame=frame, noise=SecureNoise())
        certified = sealed.open()
        if certified.noisy_steps != rule.steps:
            raise RuntimeError(f"{certified.noisy_steps} noisy steps, {rule.steps} planned")
        return certified

    def _tune(self, model: Network | Certified, spent_steps: int, budget: float) -> float:
        """Train for what is left of the budget; return the accuracy."""
        tune: Callable[..., int] = model.train if isinstance(model, Network) else model.fine_tune
        tune(self._retain, self._recipe, epochs=budget - spent_steps / self._steps_per_epoch)
        return model.evaluate(self._pictures.test).score

    def _fresh(self) -> Network:
        return Network(self._factory, device=self._retain.device)

    def _factory(self) -> nn.Module:
        return network_of(self._pictures.architecture, self._retain)
