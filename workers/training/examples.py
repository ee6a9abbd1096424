"""Encoded records and random minibatches of them: what is asked of them, and those in memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from workers.training.forms import InputForm
from workers.training.tasks.task import INPUTS, TARGET, Batch

Order = NDArray[np.int64]


class Records(ABC):
    """Records that a run learns from or is measured on, wherever they are.

    Batches are converted as networks and losses see them, and are on the device that was asked for.

    Attributes:
        form: what they look like to a network.
    """

    form: InputForm

    @abstractmethod
    def __len__(self) -> int:
        """Return how many there are."""

    def like(self, count: int) -> "Examples":
        """Return random records of the same form, the same each time; no record is looked at."""
        return Examples.random(self.form, count)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return how many batches ``epoch`` yields."""
        return len(batch_sizes(len(self), batch_size))

    @abstractmethod
    def epoch(
        self, batch_size: int, *, device: torch.device, random: np.random.Generator | None = None
    ) -> Iterator[Batch]:
        """Yield every record once, in an order drawn from ``random``.

        By default it is drawn from the operating system's entropy. Batch sizes differ by at most
        one. No batch has a single record, which BatchNorm cannot process, unless ``batch_size`` is
        1 or there is only one record; to avoid it, a batch may exceed ``batch_size`` by one.

        Raises:
            RunFailedError: there are no records.
        """

    def forever(
        self, batch_size: int, *, device: torch.device, random: np.random.Generator | None = None
    ) -> Iterator[Batch]:
        """Yield epochs without end."""
        while True:
            yield from self.epoch(batch_size, device=device, random=random)

    @abstractmethod
    def in_order(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield every record once, in the order of their sequence numbers."""

    @abstractmethod
    def cycle(
        self, order: Order, sizes: Sequence[int], first: int, *, device: torch.device
    ) -> Iterator[Batch]:
        """Yield the records at the places ``order``, [n], cut into pieces of these sizes.

        From the piece with number ``first`` on, and again from number 0, without end.
        """


@dataclass(frozen=True, eq=False)
class Examples(Records):
    """Records as tensors in memory; each batch is converted as it is needed.

    Attributes:
        tensors: by name, each [n, …], as they are stored; one of them is ``inputs``.
        form: what they look like to a network.

    Raises:
        RunFailedError: the tensors are of different numbers of records.
    """

    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    form: InputForm

    def __post_init__(self) -> None:
        if INPUTS not in self.tensors or len({len(each) for each in self.tensors.values()}) > 1:
            raise RunFailedError("records must have inputs, and a row of each tensor")

    @classmethod
    def of(cls, form: InputForm, tensors: Mapping[str, NDArray[Any] | torch.Tensor]) -> "Examples":
        """Return records of a form: a tensor [n, …] of each name in its ``layout``.

        Raises:
            RunFailedError: one is missing, unknown, or of another size.
        """
        if tensors.keys() != form.layout.keys():
            names = ", ".join(form.layout)  # the others' may be made of records' values
            raise RunFailedError(f"records have other tensors than the task's {names}")
        try:
            stored = {
                name: torch.as_tensor(tensors[name].reshape(-1, *shape)).to(dtype).contiguous()
                for name, (shape, dtype) in form.layout.items()
            }
        except (RuntimeError, ValueError) as error:
            raise RunFailedError("records have another shape than the task's") from error
        return cls(stored, form)

    @classmethod
    def random(cls, form: InputForm, count: int) -> "Examples":
        """Return made-up records of a form, the same each time."""
        return cls(form.random(count), form)

    def like(self, count: int) -> "Examples":
        """Return random records of the same form, on the same device."""
        return super().like(count).to(self.device)

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

    def epoch(
        self, batch_size: int, *, device: torch.device, random: np.random.Generator | None = None
    ) -> Iterator[Batch]:
        """Yield every example once, in a random order (``Records.epoch``)."""
        require_some(self)
        order = (random or np.random.default_rng()).permutation(len(self))
        index = torch.from_numpy(order).to(self.device)
        for chosen in torch.split(index, batch_sizes(len(self), batch_size)):
            yield self._batch(chosen, device)

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

    def cycle(
        self, order: Order, sizes: Sequence[int], first: int, *, device: torch.device
    ) -> Iterator[Batch]:
        """Yield pieces of the examples at ``order``, which are copied (``Records.cycle``)."""
        chosen, ends = self.select(order), np.cumsum(sizes).tolist()
        for number in count(first):
            piece = number % len(ends)
            yield chosen.rows(ends[piece] - sizes[piece], ends[piece], device=device)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Examples":
        return replace(self, tensors={name: change(each) for name, each in self.tensors.items()})

    def _batch(self, chosen: torch.Tensor | slice, device: torch.device) -> Batch:
        return {
            name: self.form.seen(name, tensor[chosen].to(device))
            for name, tensor in self.tensors.items()
        }


def classified(
    features: NDArray[Any] | torch.Tensor,
    labels: NDArray[Any] | torch.Tensor,
    *,
    offset: float = 0.0,
    scale: float = 1.0,
) -> Examples:
    """Return records with features [n, …] and one class each, labels [n].

    Bytes are stored as they are, other numbers as float32.
    """
    given = torch.as_tensor(features)
    form = InputForm(
        shape=tuple(given.shape[1:]),
        dtype=torch.uint8 if given.dtype == torch.uint8 else torch.float32,
        offset=offset,
        scale=scale,
    )
    return Examples.of(form, {INPUTS: given, TARGET: torch.as_tensor(labels)})


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
