"""Training without noise: initially, and again once the target is met."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from app.domain.errors import RunFailedError
from app.domain.recipe import TrainingRecipe
from workers.training.data import Examples

TrainingProgress = Callable[[int, int, torch.Tensor], None]
"""Step taken (from 1), all steps, and the batch's mean loss as a detached 0-dim tensor.

Reading the loss waits for the device: do it a few times a second. The caller decides whether it may
be shown.
"""

# How often to wait for a loss on a GPU.
_STEPS_BETWEEN_CHECKS = 32


def train(
    module: nn.Module,
    examples: Examples,
    recipe: TrainingRecipe,
    *,
    epochs: float,
    on_progress: TrainingProgress | None = None,
) -> int:
    """Minimise the cross-entropy of ``examples`` with a fresh optimiser; return the steps taken.

    Args:
        module: trained in place, on its own device; left in training mode.
        examples: at least one.
        recipe: optimiser, batch size and schedule; ``recipe.epochs`` is not used.
        epochs: passes over the examples, fractions allowed; the schedule spans exactly these.
        on_progress: called after each step; its exceptions end the training.

    Raises:
        RunFailedError: there are no examples, or the loss or a weight is no longer finite.
    """
    steps = round(epochs * examples.steps_per_epoch(recipe.batch_size))
    if steps < 1:
        return 0
    device = next(module.parameters()).device
    optimizer = optimizer_of(module, recipe)
    schedule = schedule_of(optimizer, recipe, steps)
    loss_sum = torch.zeros((), device=device)
    module.train()
    batches = islice(examples.forever(recipe.batch_size, device=device), steps)
    with overwritten_afterwards(optimizer):
        for step, (features, labels) in enumerate(batches, start=1):
            optimizer.zero_grad(set_to_none=True)
            loss = cross_entropy(module(features), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if schedule is not None:
                schedule.step()
            loss_sum += loss.detach()
            if step % _STEPS_BETWEEN_CHECKS == 0 or step == steps:
                _require_finite(loss_sum)
            if on_progress is not None:
                on_progress(step, steps, loss.detach())
    for tensor in module.parameters():
        _require_finite(tensor.detach().sum())
    return steps


@contextmanager
def overwritten_afterwards(
    optimizer: torch.optim.Optimizer, *others: torch.Tensor
) -> Iterator[None]:
    """Zero the optimiser's state, all gradients and ``others`` whenever the block ends."""
    try:
        yield
    finally:
        states = [value for state in optimizer.state.values() for value in state.values()]
        for value in (*states, *others):
            if isinstance(value, torch.Tensor):
                value.zero_()
        optimizer.zero_grad(set_to_none=False)


def optimizer_of(module: nn.Module, recipe: TrainingRecipe) -> torch.optim.Optimizer:
    """Return a fresh optimiser of all parameters, according to the recipe."""
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(
            module.parameters(),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
    return torch.optim.SGD(
        module.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def schedule_of(
    optimizer: torch.optim.Optimizer, recipe: TrainingRecipe, steps: int
) -> LRScheduler | None:
    """Return the learning rate's schedule over ``steps`` steps; None if it is constant."""
    if recipe.schedule == "constant":
        return None
    # One step more than is taken: the schedule's last step would have a rate of almost zero.
    return OneCycleLR(
        optimizer,
        max_lr=recipe.learning_rate,
        total_steps=steps + 1,
        anneal_strategy="linear",
        cycle_momentum=False,
    )


def _require_finite(number: torch.Tensor) -> None:
    if not bool(torch.isfinite(number)):
        raise RunFailedError("training diverged: lower learning_rate")
