"""Several processes that carry out one run.

The leading process alone reads the ledger, chooses batches and decides when to stop. What it says
to the others are JSON objects and tensors: nothing that is received is ever executed.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial, wraps
from itertools import pairwise
from typing import Any, Final, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from app.domain.errors import ProcessLostError, RunFailedError
from app.domain.states import Parallelism
from workers.distributed.shards import Shards
from workers.noise.generators import NoiseSource
from workers.training.tasks.task import INPUTS, Batch
from workers.training.team import Dealt, Team, parts_of

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_NUMBERS_AT_ONCE: Final = 1 << 22
"""How many numbers one collective moves: what it needs besides them stays small."""
_LEADER: Final = 0
_CPU: Final = torch.device("cpu")


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

    ``workers.distributed.execution`` has connected them.

    Raises, from every method:
        ProcessLostError: another process ended.
    """

    parallelism = Parallelism.FULL_SHARD

    def __init__(
        self, rank: int, devices: int, *, orders: dist.ProcessGroup, device: torch.device = _CPU
    ) -> None:
        self.devices = devices
        self._orders = orders
        self._device = device
        self.leads = rank == _LEADER
        self.rank = rank

    def __repr__(self) -> str:
        return f"<Processes: {self.rank} of {self.devices}>"

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The processes, as PyTorch divides tensors among them."""
        return DeviceMesh(self._device.type, list(range(self.devices)))

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
    def counted(self, noise: NoiseSource) -> dict[float, int]:
        """Return how many numbers all processes drew; only the leading process may rely on it."""
        own = json.dumps([noise.name, list(noise.drawn.items())]).encode()
        sizes = self._each(len(own), torch.int64)
        padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
        padded[: len(own)] = _bytes(own)
        everyone = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(everyone, padded)
        total: dict[float, int] = {}
        for said, size in zip(everyone, sizes, strict=True):
            generator, drawn = json.loads(said[: int(size)].numpy().tobytes())
            if generator != noise.name:
                raise RunFailedError("processes of one run drew from different noise generators")
            for noise_std, count in drawn:
                total[noise_std] = total.get(noise_std, 0) + count
        return total

    @_together
    def align_(self, values: torch.Tensor) -> None:
        """Give every process the leading one's numbers."""
        for piece in torch.split(values.view(-1), _NUMBERS_AT_ONCE):
            dist.broadcast(piece, _LEADER)

    @_together
    def spread(self, whole: torch.Tensor | None, parts: Sequence[slice], own: torch.Tensor) -> None:
        """Give each process its part of the leading one's contiguous tensor, into ``own``.

        Others give None. ``parts`` are those of all processes, ``own`` is 1-D.
        """
        if whole is None:
            self._move(own, lambda piece: dist.recv(piece, _LEADER))
            return
        numbers = whole.view(-1)
        for rank, part in enumerate(parts):
            if rank == self.rank:
                own.copy_(numbers[part])
            else:
                self._move(numbers[part], partial(dist.send, dst=rank))

    @_together
    def collect(
        self, whole: torch.Tensor | None, parts: Sequence[slice], own: torch.Tensor
    ) -> None:
        """Do the reverse of ``spread``."""
        if whole is None:
            self._move(own, lambda piece: dist.send(piece, _LEADER))
            return
        numbers = whole.view(-1)
        for rank, part in enumerate(parts):
            if rank == self.rank:
                numbers[part].copy_(own)
            else:
                self._move(numbers[part], partial(dist.recv, src=rank))

    def deal(self, batches: Iterator[Batch], micro_batches: int) -> Iterator[Dealt]:
        """Yield this process's parts of each batch, until the leading process has no more.

        A batch's rows are divided evenly. No part is a single one, which BatchNorm cannot process,
        if the batch has more: then there are fewer.
        """
        if not self.leads:
            return iter(self._received, [])
        return self._dealing(batches, lambda each: _divided(each, self.devices, micro_batches))

    def same(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the leading process's batches, whole, until it has no more."""
        whole = self._dealing(batches, lambda each: [[(each, 1.0)]] * self.devices)
        dealt = whole if self.leads else iter(self._received, [])
        return (batch for parts in dealt for batch, _ in parts)

    def flat_of(self, module: nn.Module) -> Shards:
        """Return this process's rows of a module's trainable parameters."""
        return Shards(module, self)

    def announce(self, what: str, **fields: object) -> None:
        """Tell the other processes what is done next; only the leading one is heard."""
        if self.leads:
            self._say({"do": what, **fields})

    @_together
    def heard(self) -> dict[str, Any]:
        """Return what the leading process announced; waits for it."""
        return self._hear()

    def _dealing(
        self, batches: Iterator[Batch], divided: Callable[[Batch], list[Dealt]]
    ) -> Iterator[Dealt]:
        for batch in batches:
            yield self._sent(batch, divided(batch))
        self._say({"parts": []})

    @_together
    def _sent(self, batch: Batch, parts: Sequence[Dealt]) -> Dealt:
        """Send every other process its parts of a batch; return this one's."""
        layout = [
            [name, str(each.dtype).removeprefix("torch."), *each.shape[1:]]
            for name, each in batch.items()
        ]
        sizes = [[[len(part[INPUTS]), share] for part, share in each] for each in parts]
        self._say({"parts": sizes, "layout": layout})
        sending = [
            (tensor, dist.isend(tensor, rank))
            for rank, each in enumerate(parts)
            if rank != self.rank
            for part, _ in each
            for tensor in map(_flat, part.values())
            if tensor.numel()
        ]
        for _, sent in sending:
            if sent is not None:
                sent.wait()
        return parts[self.rank]

    @_together
    def _received(self) -> Dealt:
        """Return this process's parts of the next batch; nothing after the last."""
        said = self._hear()
        if not said["parts"]:
            return []
        return [
            ({name: self._tensor(rows, *form) for name, *form in said["layout"]}, share)
            for rows, share in said["parts"][self.rank]
        ]

    def _tensor(self, rows: int, dtype: str, *shape: int) -> torch.Tensor:
        tensor = torch.empty((rows, *shape), dtype=getattr(torch, dtype))
        if tensor.numel():
            dist.recv(_flat(tensor), _LEADER)
        return tensor.to(self._device)

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

    def _move(self, vector: torch.Tensor, move: Callable[[torch.Tensor], object]) -> None:
        """Send or receive a vector in place, a piece at a time."""
        for piece in torch.split(vector, _NUMBERS_AT_ONCE):
            if piece.numel():
                move(piece)


def _divided(batch: Batch, devices: int, micro_batches: int) -> list[Dealt]:
    """Return the parts of each process, of which all have the same number.

    All compute as often, since their blocks' weights are gathered each time. What is there for the
    sake of the number only has share 0.
    """
    parts = parts_of(batch, devices * micro_batches)
    most = -(-len(parts) // devices)
    ends = [len(parts) * rank // devices for rank in range(devices + 1)]
    own = [parts[start:end] or [(parts[0][0], 0.0)] for start, end in pairwise(ends)]
    return [[*each, *([(each[0][0], 0.0)] * (most - len(each)))] for each in own]


def _bytes(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes in CPU memory: its own, if they lie there in order."""
    return tensor.cpu().contiguous().view(-1).view(torch.uint8)
