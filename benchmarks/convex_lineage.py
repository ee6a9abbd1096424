"""One linear head's life: training, then requests one after the other, all of it in its history.

Steps, noise, batches and loss are the service's own (``workers``). A lineage goes on from its
noisy release: there is no secret state. Noise comes from the repeatable generator.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from app.accounting.guarantees import Guarantee
from app.accounting.histories.history import History, Recipe
from app.accounting.terms import Neighbours
from app.domain.errors import TargetNotMetError
from benchmarks.convex_case import Case
from benchmarks.insecure_noise import InsecureNoise
from workers.mechanisms.descent import Descent
from workers.training.evaluate import Evaluation
from workers.training.feeds import FixedBatches
from workers.training.networks.network import Network
from workers.training.noisy_phase import descend

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Plan:
    """What one request's run will do.

    Attributes:
        steps: iterations on retained records; may be 0.
        account: what so many steps guarantee.
        release_noise_std: added once, after the steps; 0 for none.
        fresh_start: whether the run begins from zeros, as retraining does.
    """

    steps: int
    account: Callable[[int], Guarantee]
    release_noise_std: float = 0.0
    fresh_start: bool = False


class Lineage:
    """A head, the batches of its records, and its history.

    Args:
        case: data and loss.
        recipe: of every step.
        descent: one step; its noise is added in training too.
        seed: of the batches, the records that will be forgotten, and the noise.

    Attributes:
        history: every step, release and request so far, with the noise of each.
        training_gradients, gradients: per-record gradients of training and of all runs since.
    """

    def __init__(self, case: Case, recipe: Recipe, descent: Descent, *, seed: int) -> None:
        draws = np.random.default_rng(seed)
        self._case = case
        self._descent = descent
        self._seed = seed
        self._network = Network(case.head, device=_CPU)
        used = recipe.batches * recipe.batch_size
        self._batch_of = draws.permutation(np.arange(used) % recipe.batches)
        self._leaving = draws.permutation(used)
        self._retained = np.ones(used, dtype=bool)
        self._noise = InsecureNoise(seed, environment="test")
        self.history = History(recipe)
        self.training_gradients = 0
        self.gradients = 0

    def train(self, steps: int) -> None:
        """Train on all records, and make the head that comes out the lineage's."""
        self._take(steps)
        self.history = self.history.after_release()
        self.training_gradients += steps * self.history.recipe.batch_size

    def branch(self, *, neighbours: Neighbours, noise_seed: int) -> "Lineage":
        """Return a copy that goes on by itself, counted under ``neighbours``."""
        recipe = replace(self.history.recipe, neighbours=neighbours)
        other = Lineage(self._case, recipe, self._descent, seed=self._seed)
        other._network.flat.values.copy_(self._network.flat.values)
        other._retained = self._retained.copy()
        other._noise = InsecureNoise(noise_seed, environment="test")
        other.history = History(recipe, self.history.events)
        other.training_gradients, other.gradients = self.training_gradients, self.gradients
        return other

    def forget(self, count: int) -> None:
        """Let the next ``count`` records leave, in the order drawn at the start."""
        first = int((~self._retained).sum())
        leaving = self._leaving[first : first + count]
        self._retained[leaving] = False
        batches, counts = np.unique(self._batch_of[leaving], return_counts=True)
        records = {int(b): int(c) for b, c in zip(batches, counts, strict=True)}
        self.history = self.history.after_request(records)

    def run(self, plan: Plan, *, epsilon: float, at_most: int | None = None) -> None:
        """Answer a request: take the plan's steps, release, and check the guarantee.

        Args:
            plan: what to do.
            epsilon: the target, at the case's delta.
            at_most: take no more steps than this, though all are counted: only for baselines whose
                every request takes so many that they have long forgotten their start. With 0,
                the weights stay as they are.

        Raises:
            TargetNotMetError: the steps do not meet the target.
        """
        if plan.fresh_start:
            self._network.flat.values.zero_()
            self.history = History(self.history.recipe)
        before = self.history.steps
        taken = plan.steps if at_most is None else min(plan.steps, at_most)
        self._take(taken)
        self.history = self.history.after_steps(
            plan.steps - taken, noise_std=self._descent.noise_std
        ).after_release(noise_std=plan.release_noise_std)
        if plan.release_noise_std > 0 and at_most != 0:
            self._noise.add_(self._network.flat.values, plan.release_noise_std)
        steps = self.history.steps - before
        self.gradients += steps * self.history.recipe.batch_size
        if not plan.account(steps).meets(epsilon=epsilon, delta=self._case.delta):
            raise TargetNotMetError(f"{steps} steps do not meet epsilon {epsilon}")

    def evaluation(self) -> Evaluation:
        """Return accuracy and loss on the test records."""
        return self._network.evaluate(self._case.test)

    def accuracy(self) -> float:
        """Return the share of test records that are told right."""
        return self.evaluation().metrics["accuracy"]

    def lost_to_noise(self, noise_std: float, *, draws: int) -> float:
        """Return the accuracy that one release of these weights loses, a mean over ``draws``."""
        values, noise = self._network.flat.values, InsecureNoise(self._seed, environment="test")
        clean, plain = values.clone(), self.accuracy()
        noisy = list[float]()
        for _ in range(draws):
            noise.add_(values, noise_std)
            noisy.append(self.accuracy())
            values.copy_(clean)
        return plain - sum(noisy) / draws

    def _take(self, steps: int) -> None:
        if steps == 0:
            return
        descend(
            self._network,
            self._descent.step_,
            self._feed(steps),
            steps=steps,
            noise=self._noise,
            on_progress=lambda _taken, _steps: None,
        )
        self.history = self.history.after_steps(steps, noise_std=self._descent.noise_std)

    def _feed(self, steps: int) -> FixedBatches:
        """Return the retained records of the next ``steps`` batches; others are not visited."""
        recipe, position = self.history.recipe, self.history.steps
        visited = (self._batch_of - position) % recipe.batches < steps
        kept = np.flatnonzero(self._retained & visited)
        return FixedBatches(
            self._case.train.select(kept),
            self._batch_of[kept],
            batches=recipe.batches,
            batch_size=recipe.batch_size,
            position=position,
        )
