"""How a step of an optimiser changes the weights: all of them, or each process its part.

Optimisers and clipping work on each number alone but for the gradient's norm, which is the whole
one's. So several processes take the steps that one process would take, up to the rounding of sums.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import nn

from app.domain.recipes.recipe import TrainingRecipe
from workers.distributed.team import Team
from workers.networks.flat import FlatParameters
from workers.training.optimizers import optimizer_of, overwritten_afterwards


class Update(Protocol):
    """What turns gradients into new weights."""

    optimizer: torch.optim.Optimizer

    def begin(self) -> None:
        """Forget the last step's gradients."""

    def finish(self) -> None:
        """Change the weights by the gradients that were added since."""


class WholeUpdate:
    """A step of all weights in one process."""

    def __init__(self, module: nn.Module, recipe: TrainingRecipe) -> None:
        self.optimizer = optimizer_of(module, recipe)
        self._trained = list(trained_by(self.optimizer))
        self._clip_norm = recipe.clip_norm

    def begin(self) -> None:
        """Release the last step's gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def finish(self) -> None:
        """Clip and step."""
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._trained, self._clip_norm)
        self.optimizer.step()


class DividedUpdate:
    """A step of what this process holds; the other processes take that of theirs."""

    def __init__(
        self, module: nn.Module, flat: FlatParameters, recipe: TrainingRecipe, team: Team
    ) -> None:
        flat.attach_gradients()
        self._flat = flat
        self._team = team
        self._clip_norm = recipe.clip_norm
        self.optimizer = optimizer_of(module, recipe, _with_gradients(flat))

    def begin(self) -> None:
        """Zero the last step's gradients."""
        self._flat.gradients.zero_()

    def finish(self) -> None:
        """Clip by the whole norm, and step."""
        own = self._flat.gradients
        if self._clip_norm is not None:
            norm = self._team.norm(float(torch.linalg.vector_norm(own, dtype=torch.float64)))
            # As torch.nn.utils.clip_grad_norm_ has it.
            own.mul_(min(1.0, self._clip_norm / (norm + 1e-6)))
        self.optimizer.step()


def _with_gradients(flat: FlatParameters) -> dict[str, torch.Tensor]:
    """Return what this process holds of each tensor, by name, with its gradient."""
    named = dict(zip(flat.shapes, flat.held, strict=True))
    parts = torch.split(flat.gradients, [held.numel() for held in named.values()])
    for held, gradient in zip(named.values(), parts, strict=True):
        held.grad = gradient
    return named


@contextmanager
def updating(
    module: nn.Module, flat: FlatParameters | None, recipe: TrainingRecipe, team: Team
) -> Iterator[Update]:
    """Yield what changes the weights, with a fresh optimiser whose state is overwritten afterwards.

    Raises:
        RunFailedError: a group of the recipe has no parameter.
        ValueError: several processes divide parameters that are not flat.
    """
    if team.devices == 1:
        update: Update = WholeUpdate(module, recipe)
        with overwritten_afterwards(update.optimizer):
            yield update
        return
    if flat is None:
        raise ValueError("only flat parameters are divided")
    update = DividedUpdate(module, flat, recipe, team)
    try:
        with overwritten_afterwards(update.optimizer):
            yield update
    finally:
        flat.release_gradients()


def trained_by(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """Return the tensors that an optimiser changes."""
    return (tensor for group in optimizer.param_groups for tensor in group["params"])
