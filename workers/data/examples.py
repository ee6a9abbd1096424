"""Encoded records and random minibatches of them: what is asked of them, and those in memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from workers.tasks.task import INPUTS, TARGET, Batch


class Form(Protocol):
    """What encoded records of a kind look like."""

    @property
    def advice(self) -> str:
        """Return what a network that fails on them must do."""

    def seen(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a batch's tensor as networks and losses see it."""

    def random(self, count: int) -> Batch:
        """Return random records, the same each time; no record is looked at."""


class Pieces(Protocol):
    """Records in a fixed order, cut into pieces."""

    def cycle(self, first: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield the pieces from number ``first`` on, and again from number 0, without end."""


class Records(Protocol):
    """Records that a run learns from or is measured on, wherever they are.

    Batches are converted as networks and losses see them, and are on the device that was asked for.
    """

    def __len__(self) -> int:
        """Return how many there are."""

    def like(self, count: int) -> "Examples":
        """Return random records of the same form, the same each time; no record is looked at."""

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return how many batches ``epoch`` yields."""

    def epoch(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield every record once, in an order drawn from the operating system's entropy.

        Batch sizes differ by at most one. No batch has a single record, which BatchNorm cannot
        process, unless ``batch_size`` is 1 or there is only one record; to avoid it, a batch may
        exceed ``batch_size`` by one.

        Raises:
            RunFailedError: there are no records.
        """

    def forever(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield epochs without end."""

    def in_order(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield every record once, in the order of their sequence numbers."""

    def cut(self, order: NDArray[np.int64], sizes: Sequence[int]) -> Pieces:
        """Return the records at the places ``order``, [n], in pieces of these sizes."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Records as tensors in memory; each batch is converted as it is needed.

    Attributes:
        tensors: by name, each [n, …], as they are stored; one of them is ``inputs``.
        form: what they look like to a network.

    Raises:
        RunFailedError: the tensors are of different numbers of records.
    """

    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    form: Form

    def __post_init__(self) -> None:
        if INPUTS not in self.tensors or len({len(each) for each in self.tensors.values()}) > 1:
            raise RunFailedError("records must have inputs, and a row of each tensor")

    def like(self, count: int) -> "Examples":
        """Return random records of the same form, the same each time; no record is looked at."""
        return Examples(self.form.random(count), self.form).to(self.device)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def inputs(self) -> torch.Tensor:
        """What the network reads, [n, …], as it is stored."""
        return self.tensors[INPUTS]

    @property
    def target(self) -> torch.Tensor:
        """What is to be predicted, [n, …], where the task has one tensor of it."""
        return self.tensors[TARGET]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.inputs.device

    def to(self, device: torch.device) -> "Examples":
        """Return the same examples on ``device``."""
        return self._each(lambda tensor: tensor.to(device))

    def select(self, index: NDArray[np.int64]) -> "Examples":
        """Return the examples at ``index``, copied."""
        chosen = torch.from_numpy(index).to(self.device)
        return self._each(lambda tensor: tensor[chosen])

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return how many batches ``epoch`` yields."""
        return len(batch_sizes(len(self), batch_size))

    def epoch(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield every example once, in a random order (``Records.epoch``)."""
        require_some(self)
        order = np.random.default_rng().permutation(len(self))
        index = torch.from_numpy(order).to(self.device)
        for chosen in torch.split(index, batch_sizes(len(self), batch_size)):
            yield self._batch(chosen, device)

    def forever(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield epochs without end."""
        while True:
            yield from self.epoch(batch_size, device=device)

    def in_order(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield every example once, in the stored order."""
        for chosen in torch.split(torch.arange(len(self), device=self.device), batch_size):
            yield self._batch(chosen, device)

    def rows(self, start: int, end: int, *, device: torch.device) -> Batch:
        """Return the examples from ``start`` up to, not including, ``end``, in stored order."""
        return self._batch(slice(start, end), device)

    def filled(
        self, chosen: NDArray[np.int64], filler: "Examples", *, device: torch.device
    ) -> Batch:
        """Return the examples at ``chosen``, and behind them rows of ``filler``, as many as it has.

        Args:
            chosen: at most as many as ``filler`` has.
            filler: of the same form, on the same device.
            device: of the batch.
        """
        index = torch.from_numpy(chosen).to(self.device)
        rows = {}
        for name, tensor in self.tensors.items():
            rows[name] = filler.tensors[name].clone()
            torch.index_select(tensor, 0, index, out=rows[name][: len(chosen)])
        return Examples(rows, self.form).rows(0, len(filler), device=device)

    def cut(self, order: NDArray[np.int64], sizes: Sequence[int]) -> "_Cut":
        """Return the examples at ``order``, copied, in pieces of these sizes."""
        return _Cut(self.select(order), tuple(sizes))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Examples":
        return replace(self, tensors={name: change(each) for name, each in self.tensors.items()})

    def _batch(self, chosen: torch.Tensor | slice, device: torch.device) -> Batch:
        return {
            name: self.form.seen(name, tensor[chosen].to(device))
            for name, tensor in self.tensors.items()
        }


@dataclass(frozen=True, eq=False)
class _Cut:
    examples: Examples
    sizes: tuple[int, ...]

    def cycle(self, first: int, *, device: torch.device) -> Iterator[Batch]:
        ends = np.cumsum(self.sizes).tolist()
        for number in count(first):
            piece = number % len(ends)
            yield self.examples.rows(ends[piece] - self.sizes[piece], ends[piece], device=device)


def require_some(records: Records) -> None:
    """Check that there are records to learn from.

    Raises:
        RunFailedError: there are none.
    """
    if len(records) == 0:
        raise RunFailedError("no records are left to train on: add records to the dataset")


def batch_sizes(examples: int, batch_size: int) -> list[int]:
    """Return the sizes of an epoch's batches."""
    batches = -(-examples // batch_size)
    if batch_size > 1 and batches > 1 and examples // batches < 2:
        batches -= 1
    smaller, larger = divmod(examples, batches) if batches else (0, 0)
    return [smaller + 1] * larger + [smaller] * (batches - larger)
