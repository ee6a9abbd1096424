"""Who carries out a run, and where: one process, or several that divide its batches and weights.

Each process computes the gradient of its rows of every batch. Of every trained tensor it holds some
rows (``workers.distributed.shards``): their weights, gradients, optimiser's state and float64
position, which it moves, and adds noise of its own generator to.

    norm      the norm of a vector of which each process has a part: the same number in all
    deal      a batch's rows, divided among them
    same      a batch's rows, all of them in each process
"""

from collections.abc import Iterator
from typing import Final

import torch
from torch import nn

from app.domain.states import Parallelism
from workers.noise.generators import NoiseSource
from workers.training.networks.flat import FlatParameters
from workers.training.tasks.task import INPUTS, Batch

Dealt = list[tuple[Batch, float]]
"""A process's parts of a batch, and their shares of it: as many in each process.

A process without rows of its own has some of another one, with share 0."""


def parts_of(batch: Batch, parts: int) -> list[tuple[Batch, float]]:
    """Return a batch in parts, each with its share of the records.

    Their sizes differ by at most one. No part has a single record, which BatchNorm cannot process,
    if the batch has more: there are fewer parts then.
    """
    records = len(batch[INPUTS])
    parts = min(parts, max(1, records // 2))
    if parts == 1:
        return [(batch, 1.0)]
    split = zip(*(tensor.tensor_split(parts) for tensor in batch.values()), strict=True)
    named = [dict(zip(batch, part, strict=True)) for part in split]
    return [(part, len(part[INPUTS]) / records) for part in named]


class Team:
    """One process, which does everything itself; ``workers.distributed.processes`` are several."""

    devices: int = 1
    leads: bool = True
    parallelism: Parallelism = Parallelism.NONE

    def norm(self, own: float) -> float:
        """Return the norm of a vector of which this process has a part of norm ``own``.

        All processes get the very same number; one that is not finite makes it not finite.
        """
        return own

    def count(self, own: int) -> int:
        """Return the sum of a number of each process."""
        return own

    def total(self, own: torch.Tensor) -> torch.Tensor:
        """Return the sum of a 0-dim tensor of each process."""
        return own

    def counted(self, noise: NoiseSource) -> dict[float, int]:
        """Return how many numbers all processes drew, by standard deviation.

        Raises:
            ProcessLostError: one of them does not say.
            RunFailedError: they drew from generators of different names.
        """
        return dict(noise.drawn)

    def align_(self, values: torch.Tensor) -> None:
        """Give every process the leading one's numbers, in place; they are contiguous."""

    def deal(self, batches: Iterator[Batch], micro_batches: int) -> Iterator[Dealt]:
        """Yield this process's parts of each batch; the leading process's batches count."""
        return (parts_of(batch, micro_batches) for batch in batches)

    def same(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the leading process's batches, whole."""
        return batches

    def flat_of(self, module: nn.Module) -> FlatParameters:
        """Return what this process holds of a module's trainable parameters: all, if it is alone.

        Raises:
            PlanError: a parameter cannot be trained, or not be divided.
        """
        return FlatParameters(module)

    def announce(self, what: str, **fields: object) -> None:
        """Tell the other processes, if this one leads, what is done next."""


ALONE: Final = Team()


def choose_device() -> torch.device:
    """Return the first CUDA device if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
