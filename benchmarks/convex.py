"""Linear heads whose requests are answered one after the other, all of it in their history.

A case has data and the constants of the loss on it. Steps, noise, batches and loss are the
service's own (``workers``). A lineage goes on from its noisy release: there is no secret state.
Noise comes from a repeatable generator.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import torch

from app.accounting.guarantees import Guarantee
from app.accounting.histories.history import History, Recipe
from app.accounting.histories.strong_convexity import largest_learning_rate
from app.accounting.terms import Neighbours
from app.domain.errors import TargetNotMetError
from app.domain.heads import linear_head
from app.domain.tasks.built_in import classification, rows_of
from app.planning.mechanisms.exact_training import ExactTraining
from benchmarks.data import Pictures
from benchmarks.harness import seconds_of
from workers.mechanisms.descent import Descent
from workers.mechanisms.exact_training import minimum
from workers.training.evaluate import Evaluation, evaluate
from workers.training.examples import Examples, classified
from workers.training.networks.heads import LinearHead
from workers.training.networks.network import Network
from workers.training.noisy_phase import FixedBatches, descend
from workers.training.tasks.built_in import CLASSIFICATION

PAPER_RECORDS: Final = 11264  # Chien et al. 2024, N.2: a multiple of the largest batch, 512
_SMALL: Final = 5000  # fewer are a smoke test's
_SHUFFLE_SEED: Final = 20240  # which records are dropped to make the number a multiple
_AT_ONCE: Final = 4096
_NORM_MARGIN: Final = 1 - 2.0**-20  # rounding to float32 must not lift a norm above 1


@dataclass(frozen=True, eq=False)
class Case:
    """Records whose features are already as the head sees them, and the loss on them."""

    name: str
    classes: int
    weight_decay: float
    train: Examples = field(repr=False)
    test: Examples = field(repr=False)

    @property
    def records(self) -> int:
        """Return n."""
        return len(self.train)

    @property
    def delta(self) -> float:
        """Return 1/n."""
        return 1 / self.records

    @property
    def constants(self) -> dict[str, float]:
        """Return what every bound asks for: step size, weight decay, smoothness, Lipschitz."""
        bounds = classification(self.classes).bounds
        return {
            "learning_rate": 1 / (bounds.smoothness + self.weight_decay),
            "weight_decay": self.weight_decay,
            "smoothness": bounds.smoothness,
            "lipschitz": bounds.lipschitz,
        }

    def recipe(
        self, *, batch_size: int, neighbours: Neighbours, longest_step: bool = False
    ) -> Recipe:
        """Return the recipe: step size 1/(smoothness + weight_decay), or Delete-to-Descent's."""
        constants = self.constants
        if longest_step:
            constants["learning_rate"] = largest_learning_rate(
                weight_decay=self.weight_decay, smoothness=constants["smoothness"]
            )
        return Recipe(
            **constants,
            batch_size=batch_size,
            batches=self.records // batch_size,
            neighbours=neighbours,
            dimension=self.train.inputs.shape[1] * rows_of(self.classes),
        )

    def head(self) -> LinearHead:
        """Return the head at its start: zeros."""
        return ScaledHead(
            self.train.inputs.shape[1],
            self.classes,
            rows=rows_of(self.classes),
            feature_norm=None,
            bias=0.0,
        )


class ScaledHead(LinearHead):
    """A head on features that ``LinearHead.scaled`` has scaled once, beforehand."""

    def scaled(self, features: torch.Tensor) -> torch.Tensor:
        """Return the features as they are, in float64."""
        return features.double()


def two_digits(pictures: Pictures) -> Case:
    """Return 3 and 8 told apart on raw pixels, as Chien et al. 2024 do; no bias."""
    train, test = (only(part, (3, 8)) for part in (pictures.train, pictures.test))
    return of_pair(f"{pictures.name}: 3 against 8", train, test)


def of_pair(name: str, train: Examples, test: Examples) -> Case:
    """Return two classes told apart as Chien et al. 2024 do, lambda = 1e-6 n; no bias."""
    head = LinearHead(train.inputs[0].numel(), 2, rows=1, feature_norm=None, bias=0.0)
    largest_batch = 512 if len(train) > _SMALL else 32
    count = min(PAPER_RECORDS, len(train) // largest_batch * largest_batch)
    return Case(
        name=name,
        classes=2,
        weight_decay=1e-6 * (count if len(train) > _SMALL else PAPER_RECORDS),
        train=shuffled(seen_by(head, train), count),
        test=seen_by(head, test),
    )


class Minimum(NamedTuple):
    """A softmax head at its minimum: seconds, passes over the records, and its scores."""

    seconds: float
    passes: int
    evaluation: Evaluation


def softmax_minimum(
    head: LinearHead, classes: int, train: Examples, test: Examples, **how: float
) -> Minimum:
    """Train a head as exact training does, ``how`` being its regularisation and tolerance."""
    mechanism = ExactTraining(**how)
    work = partial(minimum, mechanism, head, train, classification(classes))
    seconds, found = seconds_of(work)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(found.weight))
    return Minimum(seconds, found.evaluations, evaluate(head, CLASSIFICATION, test))


def service_head(size: int, classes: int) -> LinearHead:
    """Return a head as the service builds it by default."""
    bias = linear_head.DEFAULT_BIAS
    return LinearHead(size, classes, rows=rows_of(classes), feature_norm=None, bias=bias)


def shuffled(examples: Examples, count: int, *, skip: int = 0) -> Examples:
    """Return ``count`` examples after the first ``skip`` of a fixed random order."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(_SHUFFLE_SEED))
    return examples.select(order[skip : skip + count].numpy())


def only(examples: Examples, classes: tuple[int, int]) -> Examples:
    """Return the records of two classes, labelled 0 and 1."""
    chosen = torch.isin(examples.target, torch.tensor(classes))
    return classified(examples.inputs[chosen], (examples.target[chosen] == classes[1]).long())


def seen_by(head: LinearHead, examples: Examples) -> Examples:
    """Return examples with their features as the head scales them, in float32."""
    parts = examples.inputs.split(_AT_ONCE)
    within = torch.cat([(head.scaled(part) * _NORM_MARGIN).float() for part in parts])
    return classified(within, examples.target)


class OrdinaryNoise:
    """torch.randn in float64, repeatable with a seed; it certifies nothing."""

    name = "torch.randn"
    drawn: Mapping[float, int] = {}

    def __init__(self, seed: int | None = None) -> None:
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def add_(self, position: torch.Tensor, noise_std: float) -> None:
        """Add N(0, noise_std^2), and round nothing."""
        made = {"generator": self._generator, "device": position.device, "dtype": torch.float64}
        position.add_(torch.randn(len(position), **made), alpha=noise_std)


@dataclass(frozen=True)
class Plan:
    """What one request's run will do: so many steps on retained records, and one release.

    ``account`` says what so many steps guarantee; a fresh start begins from zeros.
    """

    steps: int
    account: Callable[[int], Guarantee]
    release_noise_std: float = 0.0
    fresh_start: bool = False


class Lineage:
    """A head, the batches of its records, and its history.

    The seed decides the batches, the records that will be forgotten, and the noise.
    """

    def __init__(self, case: Case, recipe: Recipe, descent: Descent, *, seed: int) -> None:
        draws = np.random.default_rng(seed)
        self._case = case
        self._descent = descent
        self._seed = seed
        self._network = Network(case.head, device=torch.device("cpu"))
        self.weights = self._network.flat.values
        used = recipe.batches * recipe.batch_size
        self._batch_of = draws.permutation(np.arange(used) % recipe.batches)
        self._leaving = draws.permutation(used)
        self._retained = np.ones(used, dtype=bool)
        self._noise = OrdinaryNoise(seed)
        self._owed = 0.0  # noise of releases whose runs were only counted
        self.history = History(recipe)

    def train(self, steps: int) -> None:
        """Train on all records, and make the head that comes out the lineage's."""
        self.take(steps)
        self.history = self.history.after_release()

    def branch(self, *, neighbours: Neighbours, noise_seed: int) -> "Lineage":
        """Return a copy that goes on by itself, counted under ``neighbours``."""
        recipe = replace(self.history.recipe, neighbours=neighbours)
        other = Lineage(self._case, recipe, self._descent, seed=self._seed)
        other.weights.copy_(self.weights)
        other._retained = self._retained.copy()
        other._noise = OrdinaryNoise(noise_seed)
        other.history = History(recipe, self.history.events)
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

        No more steps than ``at_most`` are really taken, though all are counted: for baselines whose
        every request takes so many that they have long forgotten their start. With 0, the weights
        stay as they are, and what such a release leaves of its noise is added by the next run.
        """
        if plan.fresh_start:
            self.weights.zero_()
            self.history, self._owed = History(self.history.recipe), 0.0
        if at_most == 0:
            left = self._owed * self.history.recipe.contraction**plan.steps
            self._owed = math.hypot(left, plan.release_noise_std)
        elif self._owed > 0:
            self._noise.add_(self.weights, self._owed)
            self._owed = 0.0
        taken = plan.steps if at_most is None else min(plan.steps, at_most)
        self.take(taken)
        self.history = self.history.after_steps(
            plan.steps - taken, noise_std=self._descent.noise_std
        ).after_release(noise_std=plan.release_noise_std)
        if at_most != 0 and plan.release_noise_std > 0:
            self._noise.add_(self.weights, plan.release_noise_std)
        if not plan.account(plan.steps).meets(epsilon=epsilon, delta=self._case.delta):
            raise TargetNotMetError(f"{plan.steps} steps do not meet epsilon {epsilon}")

    def evaluation(self) -> Evaluation:
        """Return accuracy and loss on the test records."""
        return self._network.evaluate(self._case.test)

    def take(self, steps: int) -> None:
        """Take some steps on the records that are left."""
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
