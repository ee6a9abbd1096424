"""Whether a record has one loss for given weights, which descent on fixed batches counts on.

Its theorems are about the sum of functions of one record each. In training, normalisation over the
batch mixes records, and dropout or random variants give a record another loss at every visit.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from app.domain.errors import PlanError
from workers.training.device import choose_device
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.networks.buffers import without_buffers
from workers.training.networks.network import Network
from workers.training.tasks.task import INPUTS, Batch, Task

_TRIED: Final = 8


def require_one_loss(factory: Callable[[], nn.Module], task: Task, form: InputForm) -> None:
    """Compare losses of random records in training: again, and with others beside them.

    Raises:
        PlanError: a record's loss depends on chance, or on other records.
    """
    network = Network(factory, device=choose_device(), task=task, dtype=torch.float64)
    module = network.module.train()
    batch = Examples.random(form, _TRIED).rows(0, _TRIED, device=network.flat.device)

    def losses(some: Batch) -> torch.Tensor:
        return task.loss(module, task.augment(some))

    with torch.no_grad(), without_buffers(module):
        once, again, apart = losses(batch), losses(batch), in_halves(losses, batch)
        if not all(torch.allclose(once, each, equal_nan=True) for each in (again, apart)):
            raise PlanError(
                "this mechanism counts on one loss of each record, and in training the network or "
                "the task gives a record another one at every visit, or beside others: leave out "
                "dropout, augment and normalisation over the batch, or choose another mechanism"
            )
    network.destroy()


def in_halves(losses: Callable[[Batch], torch.Tensor], batch: Batch) -> torch.Tensor:
    """Return each record's loss, [n], with half of the other records beside it."""
    half = len(batch[INPUTS]) // 2
    return torch.cat(
        [
            losses({name: each[part] for name, each in batch.items()})
            for part in (slice(0, half), slice(half, None))
        ]
    )
