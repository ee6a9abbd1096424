"""A network whose weights are divided among processes, as PyTorch's FSDP2 does it.

Of every trained tensor each process holds some rows (ZeRO's third stage, Rajbhandari et al. 2020;
PyTorch calls it ``full_shard``). A block's weights are gathered while it computes, forward and
backward, and freed again; its gradients are summed over processes, each process keeping its rows.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from app.domain.errors import PlanError, SealedStateError
from workers.training.networks.flat import FlatParameters, require_supported

if TYPE_CHECKING:
    from workers.distributed.processes import Processes

_BLOCK: Final = 1 << 20
"""A block has at least so many weights, if the network has layers of that size."""
_WHOLE: Final = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Layers that read the weights of those inside them without calling them."""
_NEVER_CALLED: Final = (nn.ModuleList, nn.ModuleDict)
_ROWS: Final = [Shard(0)]


class Shards(FlatParameters):
    """This process's rows of a module's trainable parameters, which are replaced in place.

    What is flat here is only what this process holds: ``gradients``, and ``held`` together. It has
    no ``values``.

    Raises:
        PlanError: there is no trainable parameter, or one that cannot be divided.
    """

    def __init__(self, module: nn.Module, team: "Processes") -> None:
        self._module = module
        self._team = team
        mesh = team.mesh
        named = dict(module.named_parameters())
        trained = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
        frozen = set(named.values()) - set(trained.values())
        require_supported(trained)
        for name, tensor in trained.items():
            if tensor.dim() == 0:
                raise PlanError(
                    f"parameter {name!r} is a single number without a dimension, which cannot be "
                    "divided among processes: give it the shape [1]"
                )
        self.shapes = {name: tensor.shape for name, tensor in trained.items()}
        for tensor in trained.values():
            tensor.data = tensor.data.contiguous()
            team.align_(tensor.data)
        blocks = list(_blocks(module))
        for block in (*blocks, *([] if module in blocks else [module])):
            fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=frozen)
        for layer in module.modules():
            if isinstance(layer, FSDPModule):
                layer.set_gradient_divide_factor(1.0)
                layer.set_force_sum_reduction_for_comms(True)
        self._frozen = named.keys() - trained.keys()
        now = dict(module.named_parameters())
        self._parameters = {name: now[name] for name in self.shapes if name in now}
        if {name: tensor.shape for name, tensor in self._parameters.items()} != self.shapes:
            raise PlanError("the network shares parameters in a way that cannot be divided")
        parts = [self._parts_of(rank) for rank in range(team.devices)]
        self._parts = {name: [each[name] for each in parts] for name in self.shapes}
        self.own = parts[team.rank]
        self.gradients = torch.empty(0, dtype=self._dtype, device=self.device)
        self._places = [held.data_ptr() for held in self.held]

    @property
    def held(self) -> list[torch.Tensor]:
        """This process's rows of each tensor, in their order, 1-D views."""
        return [self.local(tensor).view(-1) for tensor in self._parameters.values()]

    @property
    def size(self) -> int:
        """Number of trainable scalars of all processes."""
        return sum(shape.numel() for shape in self.shapes.values())

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.local(next(iter(self._parameters.values()))).device

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(self._parameters.values())).dtype

    def spread(self, tensors: Mapping[str, torch.Tensor] | None) -> None:
        """Give each process its rows of the leading one's whole tensors; others give None."""
        for (name, parts), held in zip(self._parts.items(), self.held, strict=True):
            whole = None if tensors is None else tensors[name].to(held).contiguous()
            self._team.spread(whole, parts, held)

    def collect(self, into: FlatParameters | None) -> None:
        """Give the leading process all rows, in its whole network's tensors; others give None."""
        wholes = [None] * len(self._parts) if into is None else into.held
        for whole, parts, held in zip(wholes, self._parts.values(), self.held, strict=True):
            self._team.collect(whole, parts, held)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this process's rows.

        Raises:
            SealedStateError: the tensor is not divided.
        """
        if not isinstance(tensor, DTensor):
            raise SealedStateError("a parameter is whole that was divided")
        local: torch.Tensor = tensor.to_local()
        return local.detach()

    def _parts_of(self, rank: int) -> dict[str, slice]:
        """Return which numbers of each tensor, in a row, a process holds: ``torch.chunk``'s."""
        parts: dict[str, slice] = {}
        for name, shape in self.shapes.items():
            rows, row = shape[0], math.prod(shape[1:])
            most = -(-rows // self._team.devices)
            first, last = min(rank * most, rows), min((rank + 1) * most, rows)
            parts[name] = slice(first * row, last * row)
        return parts

    def attach_gradients(self) -> None:
        """Have gradients added to ``gradients``, all zeros now."""
        held = self.held
        self.gradients = torch.zeros(
            sum(part.numel() for part in held), dtype=self._dtype, device=self.device
        )
        parts = torch.split(self.gradients, [part.numel() for part in held])
        for tensor, part in zip(self, parts, strict=True):
            tensor.grad = DTensor.from_local(
                part.view(self.local(tensor).shape),
                self._team.mesh,
                _ROWS,
                run_check=False,
                shape=tensor.shape,
                stride=tensor.stride(),
            )

    def release_gradients(self) -> None:
        """Overwrite the gradients and release their memory."""
        self.gradients.zero_()
        self.gradients = self.gradients.new_empty(0)
        for tensor in self:
            tensor.grad = None

    def require_attached(self) -> None:
        """Check that the module still computes with these rows only.

        Raises:
            SealedStateError: a parameter was added, replaced or moved.
        """
        now = dict(self._module.named_parameters())
        for name, tensor, place in zip(
            self._parameters, self._parameters.values(), self._places, strict=True
        ):
            if now.pop(name, None) is not tensor or self.local(tensor).data_ptr() != place:
                raise SealedStateError(f"the network moved its parameter {name!r}")
        for name in now.keys() - self._frozen:
            raise SealedStateError(f"the network created a new parameter {name!r}")

    def destroy(self) -> None:
        """Overwrite rows and gradients with zeros, and give their memory back; only once.

        PyTorch's hooks refer to each other, so that the module itself stays for a while.
        """
        for held in self.held:
            held.zero_()
            held.untyped_storage().resize_(0)
        self.release_gradients()


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers whose weights are gathered together, inner ones first."""
    uses = Counter(map(id, _slots(module)))
    seen: set[nn.Module] = set()
    found: list[nn.Module] = []

    def left(layer: nn.Module) -> Sequence[torch.Tensor]:
        """Return the parameters of a layer that no block has yet."""
        if layer in seen:
            return []
        seen.add(layer)
        if isinstance(layer, _WHOLE):
            slots = list(_slots(layer))
        else:
            slots = [each for each in layer.parameters(recurse=False) if each.requires_grad]
            for child in layer.children():
                slots += left(child)
        within = Counter(map(id, _slots(layer)))
        alone = all(uses[id(each)] == within[id(each)] for each in slots)
        size = sum(each.numel() for each in {id(each): each for each in slots}.values())
        if isinstance(layer, _NEVER_CALLED) or not alone or size < _BLOCK:
            return slots
        found.append(layer)
        return []

    left(module)
    yield from found


def _slots(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield trainable parameters, each as often as layers have it."""
    for _, layer in module.named_modules(remove_duplicate=False):
        yield from (
            each
            for each in layer._parameters.values()  # noqa: SLF001
            if each is not None and each.requires_grad
        )
