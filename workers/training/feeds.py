"""The batches and the loss of each step of a noisy phase."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

from workers.training.data import Batch, Examples
from workers.training.gradients import parts_of


class Feed(Protocol):
    """Endless batches and their loss."""

    def forever(self, device: torch.device) -> Iterator[Batch]:
        """Yield a batch for every step."""

    def once(self, device: torch.device) -> Iterator[Batch]:
        """Yield every record once."""

    def parts(self, batch: Batch) -> list[tuple[Batch, float]]:
        """Return a batch in the parts that are computed one after the other, with their shares."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch: logits [n, classes], labels int64 [n]."""


class RandomBatches:
    """Random minibatches and their mean cross-entropy.

    Raises:
        RunFailedError: at the first batch, if there are no records.
    """

    def __init__(self, examples: Examples, batch_size: int, *, micro_batches: int = 1) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self._micro_batches = micro_batches

    def forever(self, device: torch.device) -> Iterator[Batch]:
        """Yield epochs, each in its own order."""
        return self._examples.forever(self._batch_size, device=device)

    def once(self, device: torch.device) -> Iterator[Batch]:
        """Yield every record once."""
        return self._examples.epoch(self._batch_size, device=device)

    def parts(self, batch: Batch) -> list[tuple[Batch, float]]:
        """Return the recipe's micro-batches."""
        return parts_of(batch, self._micro_batches)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(logits, labels)


class FixedBatches:
    """A model's fixed batches, cyclically; forgotten records are simply absent.

    The loss is the sum over the batch divided by ``batch_size``, which does not shrink when records
    are forgotten: a forgotten record counts as a gradient of zero (docs/guarantees.md, section 6).

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
        examples: Examples,
        batch_of: NDArray[np.int64],
        *,
        batches: int,
        batch_size: int,
        position: int = 0,
        loss_bound: float | None = None,
    ) -> None:
        order = np.argsort(batch_of, kind="stable")
        self._examples = examples.select(order)
        self._ends = np.cumsum(np.bincount(batch_of, minlength=batches))
        self._batches = batches
        self._batch_size = batch_size
        self._next = position % batches
        self._loss_bound = loss_bound

    def forever(self, device: torch.device) -> Iterator[Batch]:
        """Yield batches, continuing where the last call stopped."""
        while True:
            current = self._next
            self._next = (current + 1) % self._batches
            yield self._batch(current, device)

    def once(self, device: torch.device) -> Iterator[Batch]:
        """Yield every non-empty batch once."""
        for number in range(self._batches):
            batch = self._batch(number, device)
            if len(batch[1]):
                yield batch

    def parts(self, batch: Batch) -> list[tuple[Batch, float]]:
        """Return the whole batch: its gradient's rounding is accounted for as one sum."""
        return [(batch, 1.0)]

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum of the records' losses divided by ``batch_size``."""
        losses = cross_entropy(logits, labels, reduction="none")
        if self._loss_bound is not None:
            losses = self._loss_bound * torch.tanh(losses / self._loss_bound)
        return losses.sum() / self._batch_size

    def _batch(self, number: int, device: torch.device) -> Batch:
        start = int(self._ends[number - 1]) if number else 0
        return self._examples.rows(start, int(self._ends[number]), device=device)
