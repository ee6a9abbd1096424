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
from benchmarks import harness
from benchmarks.data import Pictures, network_of
from workers.mechanisms.catalogue import rule_of
from workers.noise.generators import SecureNoise
from workers.seal.sealed import Certified, Sealed
from workers.training.examples import Examples
from workers.training.feeds import RandomBatches
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network, Tensors

EPSILON: Final = 1.0
DELTA: Final = 1e-5
METHODS: Final = (output_perturbation.NAME, gradient_clipping.NAME, model_clipping.NAME)
FORGOTTEN_SHARE: Final = 0.1


@dataclass(frozen=True)
class Arm:
    """One line of the comparison."""

    method: str
    control: bool = False


RETRAINING: Final = Arm("retraining")
OURS: Final = Arm(gradient_clipping.NAME)
OUR_CONTROL: Final = Arm(gradient_clipping.NAME, control=True)


@dataclass(frozen=True)
class Outcome:
    """What one run of one arm gave."""

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
            size = self._recipe.batch_size
            start = unlearned(plan, self._factory, self._original, self._retain, size, frame)
        return Outcome(self._tune(start, steps, budget), EPSILON, steps, end_std)

    def _tune(self, model: Network | Certified, spent_steps: int, budget: float) -> float:
        """Train for what is left of the budget; return the accuracy."""
        tune: Callable[..., int] = model.train if isinstance(model, Network) else model.fine_tune
        tune(self._retain, self._recipe, epochs=budget - spent_steps / self._steps_per_epoch)
        return model.evaluate(self._pictures.test).score

    def _fresh(self) -> Network:
        return Network(self._factory, device=self._retain.device)

    def _factory(self) -> nn.Module:
        return network_of(self._pictures.architecture, self._retain)


def unlearned(
    plan: Plan,
    factory: Callable[[], nn.Module],
    original: Tensors,
    retain: Examples,
    batch_size: int,
    frame: ReferenceFrame,
) -> Certified:
    """Return an original after a plan's noisy steps, as the service takes them."""
    sealed = Sealed(factory, epsilon=EPSILON, delta=DELTA, device=retain.device)
    noise = SecureNoise()
    try:
        sealed.load(original)
        rule = rule_of(plan)
        sealed.unlearn(rule, RandomBatches(retain, batch_size), frame=frame, noise=noise)
        certified = sealed.open()
    finally:
        noise.destroy()
        sealed.destroy()
    harness.require(certified.noisy_steps == rule.steps, "all noisy steps are taken")
    return certified
