"""Notes what each layer with trainable parameters is called with, and what its output is worth.

A layer without a rule for gradients of single records, or with layers inside, is computed again
record by record with torch.func.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, vjp, vmap
from torch.nn import functional

from app.domain.errors import PlanError
from workers.training.dp_sgd.contributions import (
    ChannelsLast,
    Contribution,
    Whole,
    of_product,
    of_table,
)
from workers.training.networks.heads import InnerProduct, LinearHead, RidgeHead
from workers.training.tasks.task import INPUTS, Batch, Task


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
    if isinstance(layer.padding, str):
        padding = layer._reversed_padding_repeated_twice  # noqa: SLF001
    else:  # before and after the last dimension, then the one before it
        padding = [each for amount in reversed(layer.padding) for each in (amount, amount)]
    padded = functional.pad(inputs, padding).permute(0, 2, 3, 1).contiguous()
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
    size = normal.shape[normal.dim() - len(shape) :].numel()
    return _scale_and_shift(call, normal, lambda each: each.reshape(len(each), -1, size).sum(dim=1))


def _group_norm(call: Call) -> Contributions:
    layer = cast("nn.GroupNorm", call.layer)
    normal = functional.group_norm(call.inputs, layer.num_groups, eps=layer.eps)
    return _scale_and_shift(call, normal, lambda each: each.reshape(*each.shape[:2], -1).sum(dim=2))


def _scale_and_shift(
    call: Call, normal: torch.Tensor, summed: Callable[[torch.Tensor], torch.Tensor]
) -> Contributions:
    gradient = call.gradient
    return {"weight": Whole(summed(gradient * normal)), "bias": Whole(summed(gradient))}


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


@dataclass
class _Unit:
    """A layer whose calls are noted, with its trainable parameters by name."""

    path: str
    layer: nn.Module
    trained: dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class _Noted:
    unit: _Unit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edge: GradientEdge
    versions: tuple[int, ...]


@dataclass
class Capture:
    """Computes losses, and each record's contribution to the gradient of each parameter.

    Attributes:
        module: whose layers are watched.
        parameters: the trainable ones, by name.
    """

    module: nn.Module
    parameters: dict[str, nn.Parameter]
    _calls: list[_Noted] | None = field(default=None, repr=False)

    def losses(self, task: Task, batch: Batch) -> tuple[torch.Tensor, list[_Noted]]:
        """Return each record's loss, and what was noted on the way."""
        noted: list[_Noted] = []
        self._calls = noted
        try:
            return task.loss(self.module, batch), noted
        finally:
            self._calls = None

    def contributions(self, task: Task, batch: Batch) -> dict[str, Contribution]:
        """Return what each record contributes, by parameter; unused ones are left out.

        Raises:
            PlanError: a layer is used in a way that has no gradient per record.
        """
        losses, noted = self.losses(task, batch)
        return self.of(losses, noted, len(batch[INPUTS]))

    def of(
        self, losses: torch.Tensor, noted: list[_Noted], records: int, *, again: bool = False
    ) -> dict[str, Contribution]:
        """Return the same of losses that were computed; ``again`` leaves the graph for more."""
        if not noted:
            return {}
        gradients = torch.autograd.grad(
            losses.sum(), [call.edge for call in noted], allow_unused=True, retain_graph=again
        )
        found: dict[int, list[Contribution]] = {}
        with torch.no_grad():
            for call, gradient in zip(noted, gradients, strict=True):
                if gradient is None:
                    continue
                unit = call.unit
                if _versions(call.args, call.kwargs) != call.versions:
                    raise PlanError(
                        f"the network changes in place what layer {unit.path!r} read, so DP-SGD "
                        "has no gradient of each record for it: avoid in-place operations"
                    )
                _require_rows(call, gradient, records)
                used = Call(unit.layer, call.args, call.kwargs, gradient, unit.trained)
                for name, each in contributions_of(used).items():
                    found.setdefault(id(unit.trained[name]), []).append(each)
        return {
            name: _together(found[id(parameter)])
            for name, parameter in self.parameters.items()
            if id(parameter) in found
        }

    def note(
        self,
        unit: _Unit,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,  # noqa: ANN401 - a layer may return anything
    ) -> None:
        """Note a call during a forward pass."""
        if self._calls is None:
            return
        outputs = (out,) if isinstance(out, torch.Tensor) else out
        first = outputs[0] if isinstance(outputs, tuple) and outputs else None
        if not isinstance(first, torch.Tensor) or any(
            each is not None and (not isinstance(each, torch.Tensor) or each.requires_grad)
            for each in outputs[1:]
        ):
            raise PlanError(
                f"layer {unit.path!r} ({type(unit.layer).__name__}) returns more than one tensor, "
                "so DP-SGD has no gradient of each record for it"
            )
        if first.requires_grad:
            edge = get_gradient_edge(first)
            self._calls.append(_Noted(unit, args, kwargs, edge, _versions(args, kwargs)))


@contextmanager
def capturing(module: nn.Module) -> Iterator[Capture]:
    """Watch a module's layers; the hooks are always removed afterwards."""
    named = {name: each for name, each in module.named_parameters() if each.requires_grad}
    capture = Capture(module, named)
    hooks = []
    try:
        for unit in _units(module):

            def hook(
                _: nn.Module,
                args: tuple[Any, ...],
                kwargs: dict[str, Any],
                out: Any,  # noqa: ANN401
                unit: _Unit = unit,
            ) -> None:
                capture.note(unit, args, kwargs, out)

            hooks.append(unit.layer.register_forward_hook(hook, with_kwargs=True))
        yield capture
    finally:
        for each in hooks:
            each.remove()


def _units(module: nn.Module, path: str = "") -> Iterator[_Unit]:
    """Yield what to watch: layers with a rule, and whole parts with parameters of their own."""
    seen: set[int] = set()

    def walk(layer: nn.Module, path: str) -> Iterator[_Unit]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        direct = {n: p for n, p in layer.named_parameters(recurse=False) if p.requires_grad}
        parametrized = hasattr(layer, "parametrizations")
        if direct and isinstance(layer, LinearHead | RidgeHead):
            yield _Unit(path, layer.product, dict(direct))
        elif direct or parametrized:
            trained = direct
            if is_unit(layer):
                trained = {n: p for n, p in layer.named_parameters() if p.requires_grad}
            yield _Unit(path, layer, dict(trained))
            if is_unit(layer):
                return
        for name, child in layer.named_children():
            yield from walk(child, f"{path}.{name}".lstrip("."))

    yield from walk(module, path)


def _together(uses: list[Contribution]) -> Contribution:
    """Return the contribution of a parameter that is used once or more often."""
    if len(uses) == 1:
        return uses[0]
    total = uses[0].whole()
    for each in uses[1:]:
        total = total + each.whole()
    return Whole(total)


def _require_rows(call: _Noted, gradient: torch.Tensor, records: int) -> None:
    tensors = [e for e in (*call.args, *call.kwargs.values()) if isinstance(e, torch.Tensor)]
    first = tensors[0] if tensors else gradient
    if gradient.dim() and first.dim() and len(gradient) == len(first) == records:
        return
    parameter = next(iter(call.unit.trained))
    raise PlanError(
        f"DP-SGD needs the gradient of each record by itself, but the network hides records from "
        f"{f'{call.unit.path}.{parameter}'.lstrip('.')!r}: the first dimension of what its layer "
        "reads and returns must be the records"
    )


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    given = (*args, *kwargs.values())
    return tuple(each._version for each in given if isinstance(each, torch.Tensor))  # noqa: SLF001
