"""The processes of one run: how its batches and weights are divided among them.

Each process computes the gradient of its rows of every batch. The flat vector of weights is cut
into stretches, one for each process, which holds the optimiser's state and the float64 position of
its own stretch alone, moves it, and adds noise of its own generator to it (ZeRO's second stage,
Rajbhandari et al. 2020; PyTorch calls it ``shard_grad_op``). All of them hold all weights.

    reduce_   sums the gradients of all processes, each stretch in the process that moves it
    norm      the norm of a vector of which each process has its stretch: the same number in all
    gather_   gives every process the stretches that the others have moved

The leading process alone reads the ledger, chooses batches and decides when to stop. What it says
to the others are JSON objects and tensors: nothing that is received is ever executed.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from itertools import pairwise
from typing import Any, Final, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from app.domain.errors import ProcessLostError
from app.domain.parallelism import Parallelism
from workers.tasks.task import INPUTS, Batch
from workers.training.gradients import parts_of

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

Dealt = tuple[Batch, float]
"""A process's rows of a batch, and their share of it; nothing and 0 where it has none."""

_NUMBERS_AT_ONCE: Final = 1 << 22
"""How many numbers one collective moves: what it needs besides them stays small."""
_LEADER: Final = 0
_CPU: Final = torch.device("cpu")


class Team:
    """One process, which does everything itself. ``Processes`` are several."""

    devices: int = 1
    leads: bool = True
    parallelism: Parallelism = Parallelism.NONE

    def stretch(self, size: int) -> slice:
        """Return which of ``size`` weights this process moves."""
        return slice(0, size)

    def norm(self, own: float) -> float:
        """Return the norm of a vector of which this process has a stretch of norm ``own``.

        All processes get the very same number; one that is not finite makes it not finite.
        """
        return own

    def count(self, own: int) -> int:
        """Return the sum of a number of each process."""
        return own

    def total(self, own: torch.Tensor) -> torch.Tensor:
        """Return the sum of a 0-dim tensor of each process."""
        return own

    def counted(self, drawn: Mapping[float, int]) -> dict[float, int]:
        """Return how many numbers all processes drew, by standard deviation.

        Raises:
            ProcessLostError: one of them does not say.
        """
        return dict(drawn)

    def align_(self, values: torch.Tensor) -> None:
        """Give every process the leading one's numbers."""

    def reduce_(self, gradients: torch.Tensor) -> None:
        """Sum gradients over processes; only this process's stretch is defined afterwards."""

    def gather_(self, values: torch.Tensor) -> None:
        """Replace every other stretch by that of the process that moves it."""

    def deal(self, batches: Iterator[Batch]) -> Iterator[Dealt]:
        """Yield this process's rows of each batch; the leading process's batches count."""
        return ((batch, 1.0) for batch in batches)

    def announce(self, what: str, **fields: object) -> None:
        """Tell the other processes, if this one leads, what is done next."""


ALONE: Final = Team()


def _together(
    work: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Return ``work``; an error of a connection says that another process has ended."""

    @wraps(work)
    def done(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return work(*args, **kwargs)
        except RuntimeError as error:
            raise ProcessLostError(
                "another process of this run ended, stands still, or does something else"
            ) from error

    return done


class Processes(Team):
    """Several processes, which call the same methods in the same order.

    ``workers.distributed.connecting`` has connected them.

    Raises, from every method:
        ProcessLostError: another process ended.
    """

    parallelism = Parallelism.SHARD_GRAD_OP

    def __init__(
        self, rank: int, devices: int, *, orders: dist.ProcessGroup, device: torch.device = _CPU
    ) -> None:
        self.devices = devices
        self._orders = orders
        self._device = device
        self.leads = rank == _LEADER
        self._rank = rank

    def __repr__(self) -> str:
        return f"<Processes: {self._rank} of {self.devices}>"

    def stretch(self, size: int) -> slice:
        """Return which of ``size`` weights this process moves."""
        return self._stretches(size)[self._rank]

    @_together
    def norm(self, own: float) -> float:
        """Return the norm of a divided vector: computed alike in all processes, in their order."""
        return math.hypot(*self._each(own, torch.float64))

    @_together
    def count(self, own: int) -> int:
        """Return the sum of a number of each process."""
        return int(sum(self._each(own, torch.int64)))

    @_together
    def total(self, own: torch.Tensor) -> torch.Tensor:
        """Return the sum of a 0-dim tensor of each process."""
        total = own.detach().clone()
        dist.all_reduce(total)
        return total

    @_together
    def counted(self, drawn: Mapping[float, int]) -> dict[float, int]:
        """Return how many numbers all processes drew; only the leading process may rely on it."""
        own = json.dumps([[noise_std, count] for noise_std, count in drawn.items()]).encode()
        sizes = self._each(len(own), torch.int64)
        padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
        padded[: len(own)] = _bytes(own)
        everyone = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(everyone, padded)
        total: dict[float, int] = {}
        for said, size in zip(everyone, sizes, strict=True):
            for noise_std, count in json.loads(said[: int(size)].numpy().tobytes()):
                total[noise_std] = total.get(noise_std, 0) + count
        return total

    @_together
    def align_(self, values: torch.Tensor) -> None:
        """Give every process the leading one's numbers."""
        self._all(values, partial(dist.broadcast, src=_LEADER, async_op=True))

    @_together
    def reduce_(self, gradients: torch.Tensor) -> None:
        """Sum gradients over processes; only this process's stretch is defined afterwards."""
        for rank, stretch in enumerate(self._stretches(gradients.numel())):
            self._all(gradients[stretch], partial(dist.reduce, dst=rank, async_op=True))

    @_together
    def gather_(self, values: torch.Tensor) -> None:
        """Replace every other stretch by that of the process that moves it."""
        for rank, stretch in enumerate(self._stretches(values.numel())):
            self._all(values[stretch], partial(dist.broadcast, src=rank, async_op=True))

    def deal(self, batches: Iterator[Batch]) -> Iterator[Dealt]:
        """Yield this process's rows of each batch, until the leading process has no more.

        A batch's rows are divided evenly. No process gets a single one, which BatchNorm cannot
        process, if the batch has more: then some of them get none.
        """
        return self._dealing(batches) if self.leads else self._receiving()

    def announce(self, what: str, **fields: object) -> None:
        """Tell the other processes what is done next; only the leading one is heard."""
        if self.leads:
            self._say({"do": what, **fields})

    @_together
    def heard(self) -> dict[str, Any]:
        """Return what the leading process announced; waits for it."""
        return self._hear()

    def _dealing(self, batches: Iterator[Batch]) -> Iterator[Dealt]:
        for batch in batches:
            yield self._divided(batch)
        self._say({"rows": []})

    @_together
    def _divided(self, batch: Batch) -> Dealt:
        """Send every other process its rows; return this one's."""
        parts = parts_of(batch, self.devices)
        rows = [len(part[INPUTS]) for part, _ in parts]
        layout = [[name, _name_of(each.dtype), *each.shape[1:]] for name, each in batch.items()]
        self._say({"rows": rows, "layout": layout})
        sending = [
            (tensor, dist.isend(tensor, rank))
            for rank, (part, _) in enumerate(parts)
            if rank != self._rank
            for tensor in map(_flat, part.values())
        ]
        for _, sent in sending:
            if sent is not None:
                sent.wait()
        return parts[self._rank]

    def _receiving(self) -> Iterator[Dealt]:
        while dealt := self._received():
            yield dealt

    @_together
    def _received(self) -> Dealt | None:
        """Return this process's rows of the next batch; None after the last."""
        said = self._hear()
        rows = said["rows"]
        if not rows:
            return None
        if self._rank >= len(rows):
            return {}, 0.0
        own = rows[self._rank]
        batch: Batch = {}
        for name, dtype, *shape in said["layout"]:
            tensor = torch.empty((own, *shape), dtype=getattr(torch, dtype))
            dist.recv(_flat(tensor), _LEADER)
            batch[name] = tensor.to(self._device)
        return batch, own / sum(rows)

    @_together
    def _say(self, said: Mapping[str, object]) -> None:
        content = _bytes(json.dumps(said).encode())
        dist.broadcast(torch.tensor([len(content)]), _LEADER, group=self._orders)
        dist.broadcast(content, _LEADER, group=self._orders)

    def _hear(self) -> dict[str, Any]:
        size = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size, _LEADER, group=self._orders)
        content = torch.zeros(int(size), dtype=torch.uint8)
        dist.broadcast(content, _LEADER, group=self._orders)
        said: dict[str, Any] = json.loads(content.numpy().tobytes())
        return said

    def _each(self, own: float, dtype: torch.dtype) -> list[float]:
        """Return a number of each process, in their order."""
        everyone = [torch.empty(1, dtype=dtype) for _ in range(self.devices)]
        dist.all_gather(everyone, torch.tensor([own], dtype=dtype))
        return [each.item() for each in everyone]

    def _stretches(self, size: int) -> list[slice]:
        """Return the stretches of all processes, in their order; sizes differ by at most one."""
        ends = [size * rank // self.devices for rank in range(self.devices + 1)]
        return [slice(start, end) for start, end in pairwise(ends)]

    def _all(
        self, vector: torch.Tensor, collective: Callable[[torch.Tensor], dist.Work | None]
    ) -> None:
        """Apply a collective to a vector in place, a piece at a time."""
        for piece in torch.split(vector, _NUMBERS_AT_ONCE):
            going = collective(piece) if piece.numel() else None
            if going is not None:
                going.wait()


def _bytes(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes in CPU memory: its own, if they lie there in order."""
    return tensor.cpu().contiguous().view(-1).view(torch.uint8)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
