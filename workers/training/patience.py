"""Early stopping: training ends when held-out records say that it does not help any more.

What decides is outside of the seal, and retained held-out records are the only ones that do.
"""

import math
from collections.abc import Callable

import torch
from torch import nn


class Patience:
    """The best weights so far, and how long ago that was.

    Args:
        module: what is trained.
        loss: of the held-out records, for the module as it is.
        epochs: how many in a row may bring nothing better.
    """

    def __init__(self, module: nn.Module, loss: Callable[[], float], epochs: int) -> None:
        self._module = module
        self._loss = loss
        self._epochs = epochs
        self._smallest = math.inf
        self._best: dict[str, torch.Tensor] = {}
        self._in_vain = 0

    def exhausted(self) -> bool:
        """Look at the weights after an epoch; return whether training should end."""
        found = self._loss()
        if found < self._smallest:
            self._smallest, self._in_vain = found, 0
            self._best = {name: each.clone() for name, each in self._module.state_dict().items()}
        else:
            self._in_vain += 1
        return self._in_vain >= self._epochs

    def restore(self) -> None:
        """Give the module its best weights and statistics; none if no epoch was looked at."""
        own = self._module.state_dict()
        with torch.no_grad():
            for name, tensor in self._best.items():
                own[name].copy_(tensor)
