"""Features from several layers of one network: each layer's output, averaged over positions."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d

from app.domain.architectures import FeatureLayer
from app.domain.errors import RunFailedError

_SHOWN: Final = 5


class Layered(nn.Module):
    """Maps [n, *input_shape] to the features of all layers, in their order, float32 [n, size].

    Outputs are [n, C, H, W] of images, [n, T, C] of sequences, or [n, C]. A network with a method
    ``token_mask``, from its inputs to bool [n, T], says which tokens count; by default all do.

    Args:
        network: calls each of the layers once for a batch.
        layers: at least one.

    Raises:
        RunFailedError: the network has no module of that name.
    """

    def __init__(self, network: nn.Module, layers: Sequence[FeatureLayer]) -> None:
        super().__init__()
        self.network = network
        self._layers = tuple(layers)
        for layer in layers:
            _require_named(network, layer.module)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the features.

        Raises:
            RunFailedError: a layer's output has no such form, or did not come once.
        """
        mask_of = getattr(self.network, "token_mask", None)
        mask = None if mask_of is None else mask_of(inputs)
        found: dict[int, torch.Tensor] = {}
        modules = dict(self.network.named_modules())
        hooks = [
            modules[layer.module].register_forward_hook(
                _pooling(found, index, layer, rows=inputs.shape[0], mask=mask)
            )
            for index, layer in enumerate(self._layers)
        ]
        try:
            self.network(inputs)
        finally:
            for hook in hooks:
                hook.remove()
        for index, layer in enumerate(self._layers):
            if index not in found:
                raise RunFailedError(f"the network does not call its layer {layer.module!r}")
        return torch.cat([found[index] for index in range(len(self._layers))], dim=1)


def _require_named(network: nn.Module, name: str) -> None:
    names = [each for each, _ in network.named_modules() if each]
    if name in names:
        return
    close = difflib.get_close_matches(name, names, n=_SHOWN, cutoff=0.5)
    known = close or names[-_SHOWN:]
    shown = "close to it are" if close else f"among its {len(names)} are"
    raise RunFailedError(
        f"the network has no module {name!r}: {shown} {', '.join(map(repr, known))}"
    )


def _pooling(
    found: dict[int, torch.Tensor],
    index: int,
    layer: FeatureLayer,
    *,
    rows: int,
    mask: torch.Tensor | None,
) -> Callable[[nn.Module, Any, Any], None]:
    """Return a hook that pools at once: what follows may change the output in place."""

    def pool(_: nn.Module, __: Any, output: Any) -> None:  # noqa: ANN401 - whatever layers return
        if index in found:
            raise RunFailedError(
                f"the network calls its layer {layer.module!r} twice for one batch: name another"
            )
        first = output if isinstance(output, torch.Tensor) else output[0]
        found[index] = _pooled(layer, first, rows=rows, mask=mask)

    return pool


def _pooled(
    layer: FeatureLayer, output: torch.Tensor, *, rows: int, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return a layer's part of the features, [n, size]."""
    if output.dim() not in (2, 3, 4) or output.shape[0] != rows:
        raise RunFailedError(
            f"{_described(layer, output, rows)} cannot be pooled: name one with an output "
            "[n, C, H, W], [n, T, C] or [n, C]"
        )
    output = output.to(torch.float32)
    if layer.pool == "2x2" and (output.dim() != 4 or min(output.shape[2:]) < 2):
        raise RunFailedError(
            f"{_described(layer, output, rows)} has no quarters: 2x2 needs [n, C, H, W] of at "
            "least 2 x 2"
        )
    if layer.std and output.dim() == 2:
        raise RunFailedError(
            f"{_described(layer, output, rows)} has no positions, and so no standard deviations "
            "over them"
        )
    if output.dim() == 2:
        return output.clone()
    positions = output.flatten(2) if output.dim() == 4 else output.transpose(1, 2)
    weights = torch.ones_like(positions[:, :1])
    if mask is not None and output.dim() == 3 and mask.shape == output.shape[:2]:
        weights = mask.unsqueeze(1).to(torch.float32)
    weights = weights / weights.sum(dim=2, keepdim=True).clamp(min=1)
    mean = (positions * weights).sum(dim=2)
    pooled = adaptive_avg_pool2d(output, 2).flatten(1) if layer.pool == "2x2" else mean
    if not layer.std:
        return pooled
    squares = (positions - mean.unsqueeze(2)).square()
    return torch.cat([pooled, (squares * weights).sum(dim=2).sqrt()], dim=1)


def _described(layer: FeatureLayer, output: torch.Tensor, rows: int) -> str:
    shape = list(output.shape)
    return f"the layer {layer.module!r}, whose output for {rows} records has shape {shape},"
