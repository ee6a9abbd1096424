"""How a step of an optimiser changes the weights: all of them, or each process its part.

Optimisers and clipping work on each number alone but for the gradient's norm, which is the whole
one's. So several processes take the steps that one process would take, up to the rounding of sums.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from app.domain.recipes.recipe import TrainingRecipe
from workers.training.networks.flat import FlatParameters
from workers.training.optimizers import optimizer_of, overwritten_afterwards

if TYPE_CHECKING:
    from workers.training.networks.network import Network


class Update:
    """A step of all weights, or of what this process holds; others take that of theirs.

    Attributes:
        trained: the tensors that the optimiser changes.
    """

    def __init__(self, network: "Network", recipe: TrainingRecipe) -> None:
        self._team, self._flat = network.team, network.flat
        self._whole = network.team.devices == 1
        pieces = None if self._whole else _with_gradients(network.flat)
        self.optimizer = optimizer_of(network.module, recipe, pieces)
        self.trained = [each for group in self.optimizer.param_groups for each in group["params"]]
        self._clip_norm = recipe.clip_norm

    def begin(self) -> None:
        """Forget the last step's gradients."""
        if self._whole:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._flat.gradients.zero_()

    def finish(self) -> None:
        """Clip by the whole norm, and step by the gradients that were added since."""
        if self._clip_norm is not None and self._whole:
            nn.utils.clip_grad_norm_(self.trained, self._clip_norm)
        elif self._clip_norm is not None:
            own = self._flat.gradients
            norm = self._team.norm(float(torch.linalg.vector_norm(own, dtype=torch.float64)))
            # As torch.nn.utils.clip_grad_norm_ has it.
            own.mul_(min(1.0, self._clip_norm / (norm + 1e-6)))
        self.optimizer.step()


def _with_gradients(flat: FlatParameters) -> dict[str, torch.Tensor]:
    """Return what this process holds of each tensor, by name, with its gradient."""
    flat.attach_gradients()
    named = dict(zip(flat.shapes, flat.held, strict=True))
    parts = torch.split(flat.gradients, [held.numel() for held in named.values()])
    for held, gradient in zip(named.values(), parts, strict=True):
        held.grad = gradient
    return named


@contextmanager
def updating(network: "Network", recipe: TrainingRecipe) -> Iterator[Update]:
    """Yield what changes the weights, with a fresh optimiser whose state is overwritten afterwards.

    Raises:
        RunFailedError: a group of the recipe has no parameter.
    """
    update = Update(network, recipe)
    try:
        with overwritten_afterwards(update.optimizer):
            yield update
    finally:
        if network.team.devices > 1:
            network.flat.release_gradients()
