"""The batches of each step of a noisy phase, and what becomes of their records' losses."""

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from workers.training.examples import Records
from workers.training.tasks.task import INPUTS, Batch


class Feed(Protocol):
    """Endless batches, and what is minimised."""

    def forever(self, device: torch.device) -> Iterator[Batch]:
        """Yield a batch for every step."""

    def once(self, device: torch.device) -> Iterator[Batch]:
        """Yield every record once."""

    @property
    def micro_batches(self) -> int:
        """In how many parts a process computes a batch, one after the other."""

    def objective(self, losses: torch.Tensor) -> torch.Tensor:
        """Return what a batch's step minimises, of its records' losses [n]."""


class RandomBatches:
    """Random minibatches and their mean loss.

    Raises:
        RunFailedError: at the first batch, if there are no records.
    """

    def __init__(self, examples: Records, batch_size: int, *, micro_batches: int = 1) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self.micro_batches = micro_batches

    def forever(self, device: torch.device) -> Iterator[Batch]:
        """Yield epochs, each in its own order."""
        return self._examples.forever(self._batch_size, device=device)

    def once(self, device: torch.device) -> Iterator[Batch]:
        """Yield every record once."""
        return self._examples.epoch(self._batch_size, device=device)

    def objective(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the mean."""
        return losses.mean()


class FixedBatches:
    """A model's fixed batches, cyclically; forgotten records are simply absent.

    What is minimised is the sum of the batch's losses divided by ``batch_size``, which does not
    shrink when records are forgotten: a forgotten record counts as a gradient of zero
    (docs/guarantees.md, section 6).

    Args:
        examples: retained records only.
        batch_of: int64 [n], the batch of each record, below ``batches``.
        batches: length of the cycle.
        batch_size: divisor of the loss.
        position: how many steps the lineage has taken; the cycle continues there.
        loss_bound: caps one record's loss smoothly, as bound * tanh(loss / bound); None does not.
    """

    def __init__(
        self,
        examples: Records,
        batch_of: NDArray[np.int64],
        *,
        batches: int,
        batch_size: int,
        position: int = 0,
        loss_bound: float | None = None,
    ) -> None:
        self._examples = examples
        self._order = np.argsort(batch_of, kind="stable")
        self._sizes = np.bincount(batch_of, minlength=batches).tolist()
        self.micro_batches = 1  # a gradient's rounding is accounted for as one sum
        self._batch_size = batch_size
        self._next = position % batches
        self._loss_bound = loss_bound

    def forever(self, device: torch.device) -> Iterator[Batch]:
        """Yield batches, continuing where the last call stopped."""
        for batch in self._from(self._next, device):
            self._next = (self._next + 1) % len(self._sizes)
            yield batch

    def once(self, device: torch.device) -> Iterator[Batch]:
        """Yield every non-empty batch once."""
        for batch in islice(self._from(0, device), len(self._sizes)):
            if len(batch[INPUTS]):
                yield batch

    def _from(self, first: int, device: torch.device) -> Iterator[Batch]:
        return self._examples.cycle(self._order, self._sizes, first, device=device)

    def objective(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the sum divided by ``batch_size``."""
        if self._loss_bound is not None:
            losses = self._loss_bound * torch.tanh(losses / self._loss_bound)
        return losses.sum() / self._batch_size
