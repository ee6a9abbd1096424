"""How each kind of layer's parameters get their gradients of single records.

A layer without a rule, or with layers inside, is computed again record by record with torch.func.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional

from workers.training.dp_sgd.contributions import (
    ChannelsLast,
    Contribution,
    Whole,
    of_product,
    of_table,
)
from workers.training.networks.inner_product import InnerProduct


@dataclass(frozen=True, eq=False)
class Call:
    """One use of a layer in a forward pass, with the gradient of the losses' sum by its output.

    Attributes:
        layer: which was called.
        args: what it was called with, by position.
        kwargs: the same, by name.
        gradient: [R, …], of its output's shape.
        trained: its trainable parameters, by their names in the layer.
    """

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    gradient: torch.Tensor
    trained: Mapping[str, torch.Tensor]

    @property
    def inputs(self) -> torch.Tensor:
        """Return the one tensor that a layer with a rule is called with."""
        return cast("torch.Tensor", (*self.args, *self.kwargs.values())[0])


Contributions = dict[str, Contribution]


def contributions_of(call: Call) -> Contributions:
    """Return the contribution to each trainable parameter of a layer, by name."""
    rule = _rule_of(call.layer)
    found = rule(call) if rule is not None else _one_by_one(call)
    return {name: each for name, each in found.items() if name in call.trained}


def is_unit(layer: nn.Module) -> bool:
    """Say whether a layer is computed again with all that is in it, having no rule."""
    return _rule_of(layer) is None


def _rule_of(layer: nn.Module) -> Callable[[Call], Contributions] | None:
    if next(layer.children(), None) is not None:
        return None
    for kind, rule in _RULES.items():
        # What overrides forward may compute anything.
        if isinstance(layer, kind) and type(layer).forward is kind.forward:
            return rule if _is_plain(layer) else None
    return None


def _is_plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros"
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return True


def _linear(call: Call) -> Contributions:
    inputs, gradient = _places(call.inputs), _places(call.gradient)
    return _weight_and_bias(call, inputs, gradient)


def _convolution(call: Call) -> Contributions:
    layer = cast("nn.Conv1d | nn.Conv2d", call.layer)
    inputs, gradient = call.inputs, call.gradient
    if isinstance(layer, nn.Conv1d):
        inputs = inputs.unsqueeze(2)
    # Channels last, so that windows are copied in long pieces: [R, …, size, …, C].
    padded = functional.pad(inputs, _padding(layer)).permute(0, 2, 3, 1).contiguous()
    one = () if isinstance(layer, nn.Conv2d) else (1,)
    sizes, strides = (*one, *layer.kernel_size), (*one, *layer.stride)
    for dimension, (size, stride, gap) in enumerate(
        zip(sizes, strides, (*one, *layer.dilation), strict=True), start=1
    ):
        padded = padded.unfold(dimension, (size - 1) * gap + 1, stride)[..., ::gap]
    windows = padded.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)
    found = _weight_and_bias(call, windows, gradient.flatten(2).mT)
    if "weight" in found:
        found["weight"] = ChannelsLast(found["weight"], inputs.shape[1], gradient.shape[1])
    return found


def _padding(layer: nn.Conv1d | nn.Conv2d) -> list[int]:
    """Return what is added before and after the last dimension, then the one before it."""
    if isinstance(layer.padding, str):
        return layer._reversed_padding_repeated_twice  # noqa: SLF001
    return [each for amount in reversed(layer.padding) for each in (amount, amount)]


def _weight_and_bias(call: Call, inputs: torch.Tensor, gradient: torch.Tensor) -> Contributions:
    """Return the contributions of inputs [R, L, K] and gradients [R, L, O]."""
    found: Contributions = {}
    if "weight" in call.trained:
        found["weight"] = of_product(inputs, gradient)
    if "bias" in call.trained:
        found["bias"] = Whole(gradient.sum(dim=1))
    return found


def _embedding(call: Call) -> Contributions:
    layer = cast("nn.Embedding", call.layer)
    index = call.inputs.flatten(1) if call.inputs.dim() > 1 else call.inputs.unsqueeze(1)
    values = call.gradient.reshape(*index.shape, layer.embedding_dim)
    if layer.padding_idx is not None:
        values = values.masked_fill((index == layer.padding_idx).unsqueeze(2), 0.0)
    return {"weight": of_table(index.long(), values, table=layer.num_embeddings)}


def _last_norm(call: Call) -> Contributions:
    layer = cast("nn.LayerNorm | nn.RMSNorm", call.layer)
    shape = list(layer.normalized_shape)
    if isinstance(layer, nn.LayerNorm):
        normal = functional.layer_norm(call.inputs, shape, eps=layer.eps)
    else:
        normal = functional.rms_norm(call.inputs, shape, eps=layer.eps)
    return _scale_and_shift(call, normal, lambda each: _summed_but_last(each, len(shape)))


def _group_norm(call: Call) -> Contributions:
    layer = cast("nn.GroupNorm", call.layer)
    normal = functional.group_norm(call.inputs, layer.num_groups, eps=layer.eps)
    return _scale_and_shift(call, normal, _summed_but_channels)


def _scale_and_shift(
    call: Call, normal: torch.Tensor, summed: Callable[[torch.Tensor], torch.Tensor]
) -> Contributions:
    gradient = call.gradient
    return {"weight": Whole(summed(gradient * normal)), "bias": Whole(summed(gradient))}


def _summed_but_last(values: torch.Tensor, last: int) -> torch.Tensor:
    records, size = len(values), values.shape[values.dim() - last :].numel()
    return values.reshape(records, -1, size).sum(dim=1)


def _summed_but_channels(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(*values.shape[:2], -1).sum(dim=2)


def _places(values: torch.Tensor) -> torch.Tensor:
    """Return [R, places, columns]."""
    return values.reshape(len(values), -1, values.shape[-1])


def _one_by_one(call: Call) -> Contributions:
    """Compute the layer's gradients again, of one record at a time."""
    layer, records = call.layer, len(call.gradient)
    names = list(call.kwargs)
    given = [*call.args, *call.kwargs.values()]
    places = [
        place
        for place, each in enumerate(given)
        if isinstance(each, torch.Tensor) and each.dim() and len(each) == records
    ]

    def of_record(own: tuple[torch.Tensor, ...], gradient: torch.Tensor) -> dict[str, torch.Tensor]:
        values = list(given)
        for place, each in zip(places, own, strict=True):
            values[place] = each.unsqueeze(0)
        split = len(values) - len(names)
        args, kwargs = tuple(values[:split]), dict(zip(names, values[split:], strict=True))

        def forward(trained: dict[str, torch.Tensor]) -> torch.Tensor:
            output = functional_call(layer, trained, args, kwargs)
            return cast("torch.Tensor", output[0] if isinstance(output, tuple) else output)

        pulled = vjp(forward, dict(call.trained))[1]
        return cast("dict[str, torch.Tensor]", pulled(gradient.unsqueeze(0))[0])

    own = tuple(given[place].detach() for place in places)
    found = vmap(of_record)(own, call.gradient)
    return {name: Whole(each.reshape(records, -1)) for name, each in found.items()}


_RULES: Final[Mapping[type[nn.Module], Callable[[Call], Contributions]]] = {
    nn.Linear: _linear,
    InnerProduct: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _last_norm,
    nn.RMSNorm: _last_norm,
    nn.GroupNorm: _group_norm,
}
