"""What a factory's network may consist of; anything else is refused by name."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

import torch
from torch import nn

from app.domain.errors import RunFailedError

_TENSORS: Final[Mapping[str, Callable[[torch.Tensor], bool]]] = {
    "is on the meta device and has no numbers: build it on the CPU": lambda each: each.is_meta,
    "is complex: keep real and imaginary parts in a tensor of real numbers": torch.is_complex,
    "is sparse or otherwise not dense": lambda each: each.layout is not torch.strided,
    "is quantised: use float32": lambda each: each.is_quantized,
}
_LAYERS: Final[Mapping[str, Callable[[nn.Module], bool]]] = {
    "computes with other processes: use BatchNorm": lambda each: isinstance(each, nn.SyncBatchNorm),
    "has sparse gradients: leave out sparse=True": lambda each: (
        isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.sparse
    ),
}


def require_supported(module: nn.Module, *, trains: bool = False) -> None:
    """Raise ``RunFailedError`` where a tensor or, of one that trains, a layer is not supported.

    Call it before the network is converted, which would change such numbers in silence; ``trains``
    means that it has read a batch as well, which gives lazy layers their shapes.
    """
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if not nn.parameter.is_lazy(tensor):
            faults = [fault for fault, has in _TENSORS.items() if has(tensor)]
        else:
            faults = ["is lazy, and no batch gives it a shape: leave its layer out"] * trains
        if faults:
            raise RunFailedError(f"the network's tensor {name!r} {faults[0]}")
    for name, layer in module.named_modules() if trains else ():
        for fault, has in _LAYERS.items():
            if has(layer):
                raise RunFailedError(f"the layer {name!r} ({type(layer).__name__}) {fault}")
