"""DP-SGD by our own step and by Opacus, which is asked for only where it is installed.

    pip install --no-deps opacus==1.6.0 opt_einsum

Both take the same Poisson samples, clip, noise multiplier, optimiser and schedule, from one plan at
(epsilon, 1e-5) for a group of records. Opacus adds torch's own noise, not a cryptographic one.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from app.accounting import dp_sgd
from app.domain.recipes import TrainingRecipe
from benchmarks.ensembles_cases import Case
from benchmarks.harness import seconds_of
from workers.noise.generators import SecureNoise
from workers.training.dp_sgd.training import PrivateTraining, poisson_sample, train_privately
from workers.training.examples import Examples
from workers.training.networks.network import Network
from workers.training.optimizers import Schedule, optimizer_of
from workers.training.tasks.task import INPUTS, TARGET

OPACUS: Final = "opacus"
EPSILON: Final = 1.0
DELTA: Final = 1e-5
BATCH: Final = 600


def has_opacus() -> bool:
    """Say whether Opacus is installed."""
    return find_spec(OPACUS) is not None


def plan_of(
    case: Case, group: int, *, epsilon: float = EPSILON, learning_rate: float = 0.5
) -> tuple[TrainingRecipe, PrivateTraining]:
    """Return plain SGD, and what DP-SGD does at (epsilon, 1e-5) for a group of records."""
    rate = min(1.0, BATCH / len(case.train))
    steps = int(case.recipe.epochs / rate)
    target = {"epsilon": epsilon, "delta": DELTA, "sampling_rate": rate, "steps": steps}
    noise = dp_sgd.calibrate(**target, group_size=group, records=len(case.train))
    how = {"momentum": 0.0, "weight_decay": 0.0, "batch_size": int(rate * len(case.train))}
    return (
        replace(case.recipe, learning_rate=learning_rate, **how),
        PrivateTraining(noise, gradient_clip=1.0, sampling_rate=rate, steps=steps),
    )


def privately(case: Case, plan: tuple[TrainingRecipe, PrivateTraining]) -> tuple[Network, float]:
    """Return a network that our own DP-SGD has trained, and a processor's seconds of one step."""
    recipe, private = plan
    network, noise = Network(case.start, device=torch.device("cpu")), SecureNoise()
    train = partial(train_privately, network, case.train, recipe, private, noise=noise)
    return network, seconds_of(train, time.process_time)[0] / private.steps


def by_opacus(case: Case, plan: tuple[TrainingRecipe, PrivateTraining]) -> tuple[Network, float]:
    """Return the same by Opacus."""
    recipe, private = plan
    import_module("opacus.optimizers")  # takes seconds
    network = Network(case.start, device=torch.device("cpu"))
    train = partial(train_by_opacus, network.module, case.train, recipe, private)
    return network, seconds_of(train, time.process_time)[0] / private.steps


def train_by_opacus(
    module: nn.Module,
    examples: Examples,
    recipe: TrainingRecipe,
    private: PrivateTraining,
    *,
    on_progress: Callable[[], object] = lambda: None,
) -> None:
    """Train a classifier in place; ``on_progress`` is called after each step."""
    wrapped: Any = import_module("opacus").GradSampleModule(module.train())
    plain = optimizer_of(module, recipe)
    optimizer = import_module("opacus.optimizers").DPOptimizer(
        plain,
        noise_multiplier=private.noise_multiplier,
        max_grad_norm=private.gradient_clip,
        expected_batch_size=recipe.batch_size,
    )
    schedule, device = Schedule(plain, recipe, private.steps), next(module.parameters()).device
    for step in range(1, private.steps + 1):
        chosen = poisson_sample(len(examples), private.sampling_rate)
        (batch,) = examples.select(chosen).in_order(len(chosen), device=device)
        optimizer.zero_grad()
        cross_entropy(wrapped(batch[INPUTS]), batch[TARGET]).backward()
        schedule.begin(step)
        optimizer.step()
        on_progress()
    wrapped.remove_hooks()
