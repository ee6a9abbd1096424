"""A task whose records are another random variant of themselves at every visit in training."""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.tasks.augmentation import FLIP, NOISE, SHIFT, Augmentation
from workers.tasks.task import INPUTS, Batch, Forward, Task


def visited(task: Task, batch: Batch) -> Batch:
    """Return what a step of training sees of a batch: random variants, if its task makes some."""
    augment: Callable[[Batch], Batch] | None = getattr(task, "augment", None)
    return batch if augment is None else augment(batch)


def draw_afresh() -> None:
    """Start the process's generators, of dropout and random variants, at seeds from the system.

    What is drawn says then nothing of what was trained before, and nobody knows which numbers a
    row of a batch gets: in DP-SGD that depends on who else is in the sample.
    """
    torch.manual_seed(int.from_bytes(os.urandom(8)))
    random.seed()
    np.random.seed()  # noqa: NPY002 - for networks that use it


class Augmented:
    """A built-in task with augmentations of its inputs.

    Args:
        task: what is learned.
        augmentations: carried out in their order.
    """

    def __init__(self, task: Task, augmentations: Sequence[Augmentation]) -> None:
        self._task = task
        self._augmentations = tuple(augmentations)

    @property
    def headline(self) -> str:
        """Return the task's."""
        return self._task.headline

    def augment(self, batch: Batch) -> Batch:
        """Return a random variant of each record, by numbers of torch's own generator."""
        inputs = batch[INPUTS]
        for each in self._augmentations:
            inputs = _VARIANTS[each.name](inputs, each.amount)
        return batch | {INPUTS: inputs}

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return the loss of each record as it is, [n]."""
        return self._task.loss(module, batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return the predictions for each record as it is."""
        return self._task.predict(module, batch)

    def metrics(
        self, predictions: Mapping[str, NDArray[Any]], batch: Mapping[str, NDArray[Any]]
    ) -> dict[str, float]:
        """Return the task's figures."""
        return self._task.metrics(predictions, batch)


def _flipped(inputs: torch.Tensor, _: float) -> torch.Tensor:
    chosen = torch.rand(len(inputs)) < 0.5
    mask = chosen.to(inputs.device).reshape(-1, *[1] * (inputs.ndim - 1))
    return torch.where(mask, inputs.flip(-1), inputs)


def _shifted(inputs: torch.Tensor, pixels: float) -> torch.Tensor:
    most = int(pixels)
    height, width = inputs.shape[-2:]
    by = torch.randint(-most, most + 1, (2, len(inputs))).to(inputs.device)
    padded = torch.nn.functional.pad(inputs, (most, most, most, most))
    rows = torch.arange(height, device=inputs.device) + most - by[0][:, None]
    columns = torch.arange(width, device=inputs.device) + most - by[1][:, None]
    one = torch.arange(len(inputs), device=inputs.device)[:, None, None]
    if inputs.ndim == 3:
        return padded[one, rows[:, :, None], columns[:, None, :]]
    moved = padded.movedim(1, -1)[one, rows[:, :, None], columns[:, None, :]]
    return moved.movedim(-1, 1).contiguous()


def _noisy(inputs: torch.Tensor, std: float) -> torch.Tensor:
    return inputs + std * torch.randn(inputs.shape).to(inputs.device)


_VARIANTS: Final[Mapping[str, Callable[[torch.Tensor, float], torch.Tensor]]] = {
    FLIP: _flipped,
    SHIFT: _shifted,
    NOISE: _noisy,
}
