"""All trainable parameters of a module as views into one flat buffer, and their gradients too."""

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from app.domain.errors import PlanError, RunFailedError, SealedStateError


class FlatParameters:
    """Moves a module's trainable parameters into one flat buffer, in place.

    The module keeps working: its parameters become views. Tied parameters appear once, under their
    first name; the order is that of ``named_parameters``. Frozen parameters stay where they are.

    Attributes:
        values: float32 or float64 [size], the parameters' values.
        gradients: [size], of the same dtype, between ``attach_gradients`` and
            ``release_gradients``, else empty; ``backward`` adds to it.
        shapes: name to shape of every tensor, in order.
        own: which numbers of each tensor, in a row, this process holds: here all.

    Raises:
        PlanError: no parameter can be trained, or one is neither float32 nor float64, or of
            another dtype than the others.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        named = dict(module.named_parameters())
        self._parameters = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
        self._frozen = named.keys() - self._parameters.keys()
        require_supported(self._parameters)
        self.shapes = {name: tensor.shape for name, tensor in self._parameters.items()}
        self.own = {name: slice(0, shape.numel()) for name, shape in self.shapes.items()}
        first = next(iter(self))
        self.values = torch.empty(
            sum(tensor.numel() for tensor in self), dtype=first.dtype, device=first.device
        )
        self.gradients = self.values.new_empty(0)
        for tensor, value in zip(self, self._split(self.values), strict=True):
            value.copy_(tensor.detach())
            tensor.data = value

    def __iter__(self) -> Iterator[nn.Parameter]:
        return iter(self._parameters.values())

    @property
    def held(self) -> list[torch.Tensor]:
        """What this process holds of each tensor, in their order, 1-D views."""
        return [value.view(-1) for value in self._split(self.values)]

    @property
    def size(self) -> int:
        """Number of trainable scalars."""
        return self.values.numel()

    @property
    def device(self) -> torch.device:
        """Where the buffers are."""
        return self.values.device

    def spread(self, tensors: Mapping[str, torch.Tensor] | None) -> None:
        """Take the values of whole tensors by name; None in a process that does not lead.

        Raises:
            RunFailedError: this process has nothing to take them from.
        """
        if tensors is None:
            raise RunFailedError("there are no weights to load")
        for name, held in zip(self.shapes, self.held, strict=True):
            held.copy_(tensors[name].reshape(-1))

    def collect(self, into: "FlatParameters | None") -> None:
        """Give the values to a whole network's; None in a process that does not lead."""
        if into is not None:
            into.values.copy_(self.values)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what this process holds of a parameter or its gradient."""
        return tensor

    def attach_gradients(self) -> None:
        """Make every parameter's gradient a view of ``gradients``, all zeros."""
        self.gradients = torch.zeros_like(self.values)
        for tensor, gradient in zip(self, self._split(self.gradients), strict=True):
            tensor.grad = gradient

    def release_gradients(self) -> None:
        """Overwrite the gradients and release their memory."""
        self.gradients.zero_()
        self.gradients = self.values.new_empty(0)
        for tensor in self:
            tensor.grad = None

    def require_attached(self) -> None:
        """Check that the module still computes with this buffer only.

        Raises:
            SealedStateError: a parameter was added, replaced or moved out of the buffer.
        """
        now = dict(self._module.named_parameters())
        for (name, shape), value in zip(self.shapes.items(), self._split(self.values), strict=True):
            tensor = now.pop(name, None)
            if tensor is None or tensor.shape != shape or tensor.data_ptr() != value.data_ptr():
                raise SealedStateError(f"the network moved its parameter {name!r}")
        for name in now.keys() - self._frozen:
            raise SealedStateError(f"the network created a new parameter {name!r}")

    def destroy(self) -> None:
        """Overwrite values and gradients with zeros."""
        self.values.zero_()
        self.release_gradients()

    def _split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        sizes = [shape.numel() for shape in self.shapes.values()]
        return [
            piece.view(shape)
            for piece, shape in zip(torch.split(flat, sizes), self.shapes.values(), strict=True)
        ]


def require_supported(parameters: Mapping[str, torch.Tensor]) -> None:
    """Raise ``PlanError`` unless there are parameters, all float32 or all float64."""
    if not parameters:
        raise PlanError("the architecture has no parameters to train")
    dtype = next(iter(parameters.values())).dtype
    for name, tensor in parameters.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise PlanError(f"parameter {name!r} is {tensor.dtype}: use float32 or float64")
        if tensor.dtype != dtype:
            raise PlanError(f"parameter {name!r} is {tensor.dtype}, others are {dtype}: use one")
