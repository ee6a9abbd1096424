"""One forget request, and how each arm of the comparison answers it.

A noisy arm takes the same road as the service: ``Sealed`` weights, the noisy phase until the target
is met, fine-tuning with what is left of the budget. As there, initialisation, order of the batches
and noise come from the operating system's entropy: only who is forgotten has a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from app.domain.recipes.recipe import TrainingRecipe
from app.planning.shape import ModelShape
from benchmarks.data import CLASSES, Pictures
from benchmarks.paper_settings import DELTA
from benchmarks.unlearning_arms import PLANNED, RETRAINING, Arm, NoisyPlan, planned, published
from workers.noise.generators import SecureNoise
from workers.seal.sealed import Certified, Sealed
from workers.training.feeds import RandomBatches
from workers.training.networks.architectures import build
from workers.training.networks.network import Network, Tensors

FORGOTTEN_SHARE = 0.1


@dataclass(frozen=True)
class Outcome:
    """What one run of one arm gave.

    Attributes:
        accuracy: on the test pictures, at the end of the budget.
        by_epoch: the same after each whole epoch of the budget, where that was asked for.
        epsilon: at delta = 1e-5; 0 for retraining.
        noisy_steps: taken, or left out by a control.
        end_std: size of the noise at the end of the noisy phase; 0 for retraining.
    """

    accuracy: float
    by_epoch: list[float]
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

    def run(self, arm: Arm, *, budget: float, by_epoch: bool) -> Outcome:
        """Answer the request within ``budget`` epochs of the retained pictures."""
        if arm == RETRAINING:
            accuracy, curve = self._tune(self._fresh(), 0, budget, by_epoch=by_epoch)
            return Outcome(accuracy, curve)
        plan = self._plan(arm, budget)
        start = self._random_start(plan) if arm.control else self._unlearned(plan)
        accuracy, curve = self._tune(start, plan.noisy_steps, budget, by_epoch=by_epoch)
        return Outcome(accuracy, curve, plan.epsilon, plan.noisy_steps, plan.end_std)

    def _plan(self, arm: Arm, budget: float) -> NoisyPlan:
        if arm.settings == PLANNED:
            shape = ModelShape(
                retained=len(self._retain),
                batch_size=self._recipe.batch_size,
                recipe_epochs=self._recipe.epochs,
            )
            return planned(arm.method, factory=self._factory, shape=shape, budget=budget)
        return published(arm.method, factory=self._factory, data=self._pictures.name, budget=budget)

    def _unlearned(self, plan: NoisyPlan) -> Certified:
        device = self._retain.device
        sealed = Sealed(self._factory, epsilon=plan.epsilon, delta=DELTA, device=device)
        sealed.load(self._original)
        sealed.unlearn(
            plan.mechanism,
            RandomBatches(self._retain, self._recipe.batch_size),
            frame=plan.frame,
            noise=SecureNoise(),
        )
        certified = sealed.open()
        if certified.noisy_steps != plan.noisy_steps:
            raise RuntimeError(f"{certified.noisy_steps} noisy steps, {plan.noisy_steps} planned")
        return certified

    def _random_start(self, plan: NoisyPlan) -> Network:
        network = self._fresh()
        flat = network.flat
        noise = plan.end_std * torch.randn_like(flat.values)
        plan.frame.on(flat).weights_at(noise, out=flat.held)
        return network

    def _tune(
        self, model: Network | Certified, spent_steps: int, budget: float, *, by_epoch: bool
    ) -> tuple[float, list[float]]:
        curve: list[float] = []
        per_epoch = self._steps_per_epoch

        def on_progress(step: int, _: int, __: torch.Tensor) -> None:
            if by_epoch and (spent_steps + step) % per_epoch == 0:
                curve.append(model.evaluate(self._pictures.test).score)

        tune: Callable[..., int] = model.train if isinstance(model, Network) else model.fine_tune
        epochs = budget - spent_steps / per_epoch
        tune(self._retain, self._recipe, epochs=epochs, on_progress=on_progress)
        return model.evaluate(self._pictures.test).score, curve

    def _fresh(self) -> Network:
        return Network(self._factory, device=self._retain.device)

    def _factory(self) -> nn.Module:
        return build(
            self._pictures.architecture,
            input_shape=tuple(self._retain.inputs.shape[1:]),
            classes=CLASSES,
            allowed_factories=(),
        )
