"""Builds a freshly initialised network from an ``ArchitectureSpec``, and features of its layers."""

import difflib
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, cast

import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d

from app.domain.architectures import ArchitectureSpec, FeatureLayer
from app.domain.errors import RunFailedError
from app.domain.heads import boosted_trees, linear_head, ridge_head
from app.domain.tasks.built_in import classification, rows_of
from app.domain.tasks.spec import TaskSpec
from workers.training.networks.ensemble import Ensemble
from workers.training.networks.heads import LinearHead, RidgeHead
from workers.training.networks.held import copied
from workers.training.networks.operator_code import called, imported
from workers.training.networks.trees import BoostedTrees

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


def build(
    architecture: ArchitectureSpec,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    allowed_factories: Sequence[str],
    tokens: bool = False,
    task: TaskSpec | None = None,
    in_full: bool = False,
    out: Collection[int] = (),
) -> nn.Module:
    """Return a new network on the CPU that maps [n, *input_shape] to [n, classes].

    Linear and ridge heads are float64, every other network float32. Either takes float32 features;
    a factory's may take tokens, which are int64. The initialisation draws from torch's global
    generator.

    Args:
        architecture: what to build.
        input_shape: shape of one record's features.
        classes: number of classes, or of other outputs.
        allowed_factories: import paths that ``custom`` may name: ``package.module:factory`` or
            ``package.module:*``.
        tokens: whether the features are tokens.
        task: what the network is to learn; None for public weights, whose outputs are ``classes``.
        in_full: whether an exception of the operator's code is shown completely; only before a
            record is read.
        out: which members of an ensemble are left out.

    Raises:
        RunFailedError: the factory is not allowed or cannot be imported, or the network does not
            fit the dataset. The message says what to change.
    """
    rows = rows_of(classes) if task is None else task.rows
    if architecture.of is not None:
        member = partial(
            build,
            architecture.member,
            input_shape=input_shape,
            classes=classes,
            allowed_factories=allowed_factories,
            tokens=tokens,
            task=task,
            in_full=in_full,
        )
        active = [number for number in range(architecture.networks) if number not in out]
        return Ensemble((member() for _ in active), task or classification(classes), active)
    if architecture.name == "custom":
        module = _build_custom(
            architecture, input_shape, classes, allowed_factories, in_full=in_full
        )
    elif tokens:
        raise RunFailedError(f"the architecture {architecture.name} does not read tokens")
    elif architecture.name == linear_head.NAME:
        module = LinearHead(
            math.prod(input_shape),
            classes,
            rows=rows,
            feature_norm=architecture.options.get("feature_norm"),
            bias=architecture.options.get("bias", linear_head.DEFAULT_BIAS),
        )
    elif architecture.name == boosted_trees.NAME:
        options = boosted_trees.options_of(architecture.options)
        module = BoostedTrees(
            classes,
            rows=rows,
            **{name: options[name] for name in ("trees", "leaves", "depth")},
            categories=() if task is None else boosted_trees.categories_of(architecture, task),
        )
    else:
        module = _ZOO[architecture.name](architecture.options, input_shape, classes)
    shape = (classes,) if task is None else task.output_shape(input_shape)
    _require_fit(module, zeros(input_shape, tokens=tokens), shape, in_full=in_full)
    if architecture.name == "custom":
        require_supported(module, trains=True)
        module = copied(module)
    return module


def zeros(input_shape: tuple[int, ...], *, tokens: bool) -> torch.Tensor:
    """Return two records of zeros, as a network reads them."""
    return torch.zeros((2, *input_shape), dtype=torch.int64 if tokens else torch.float32)


def build_features(
    architecture: ArchitectureSpec,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    allowed_factories: Sequence[str],
    layers: Sequence[FeatureLayer] = (),
    in_full: bool = False,
) -> tuple[nn.Module, nn.Module]:
    """Return a network and what computes features with it: [n, *input_shape] to [n, d].

    Without layers, a zoo network ends in a linear layer, which is left out, and a factory's network
    is used as a whole, whatever its output's shape.

    Args:
        architecture: what to build.
        input_shape: shape of one record's features.
        classes: number of classes of the task that the network was trained for.
        allowed_factories: as for ``build``.
        layers: whose outputs are the features.
        in_full: as for ``build``.

    Raises:
        RunFailedError: as for ``build``, or the network lacks that layer, or the zoo network does
            not end in a linear layer.
    """
    if architecture.name == "custom":
        network = _build_custom(
            architecture, input_shape, classes, allowed_factories, in_full=in_full
        )
        flat = nn.Sequential(network, nn.Flatten())
        return network, Layered(network, layers) if layers else flat
    network = build(
        architecture,
        input_shape=input_shape,
        classes=classes,
        allowed_factories=allowed_factories,
    )
    if layers:
        return network, Layered(network, layers)
    if not isinstance(network, nn.Sequential) or not isinstance(network[-1], nn.Linear):
        raise RunFailedError(f"the architecture {architecture.name!r} cannot be a frozen backbone")
    return network, nn.Sequential(*list(network)[:-1], nn.Flatten())


_OUTPUT_GAIN: Final = 0.1


def _build_mlp(options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    for hidden in options["hidden"]:
        layers += [_initialised(nn.Linear(width, hidden)), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, _output(width, classes))


def _build_cnn(options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Koloskova et al. 2025, appendix B: convolutions, average pools, a global mean, a dense head.

    Two-dimensional features are one channel.
    """
    if len(input_shape) not in (2, 3):
        raise RunFailedError(
            f"the architecture cnn needs features of shape [channels, height, width] or "
            f"[height, width], not {list(input_shape)}: use mlp, or reshape the features"
        )
    stages = len(options["channels"])
    if min(input_shape[-2:]) < 2**stages:
        raise RunFailedError(
            f"the architecture cnn halves the image {stages} times, which {list(input_shape)} "
            "does not allow: give fewer channels"
        )
    layers: list[nn.Module] = [_AddChannel()] if len(input_shape) == 2 else []
    width = input_shape[0] if len(input_shape) == 3 else 1
    for channels in options["channels"]:
        layers += [
            _initialised(nn.Conv2d(width, channels, 3, padding="same")),
            nn.ReLU(),
            nn.AvgPool2d(2),
        ]
        width = channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), _output(width, classes)]
    return nn.Sequential(*layers, *head)


class _AddChannel(nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.unsqueeze(1)


def _initialised(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """He's normal initialisation, biases 0."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _output(width: int, classes: int) -> nn.Linear:
    """Return a last layer that begins close to 0: at first all classes are about alike.

    After few epochs that is worth many points, of retraining as of noise in the frame's units.
    """
    layer = nn.Linear(width, classes)
    _initialised(layer)
    layer.weight.data.mul_(_OUTPUT_GAIN)
    return layer


_ZOO: Mapping[str, Callable[[Mapping[str, Any], tuple[int, ...], int], nn.Module]] = {
    "logistic": lambda _, shape, classes: _build_mlp({"hidden": []}, shape, classes),
    "mlp": _build_mlp,
    "cnn": _build_cnn,
    "ridge_head": lambda options, shape, classes: RidgeHead(
        math.prod(shape),
        classes,
        feature_range=options.get("feature_range", ridge_head.DEFAULT_RANGE),
    ),
}


def _build_custom(
    architecture: ArchitectureSpec,
    input_shape: tuple[int, ...],
    classes: int,
    allowed_factories: Sequence[str],
    *,
    in_full: bool,
) -> nn.Module:
    path = cast("str", architecture.factory)
    factory = imported(path, allowed=allowed_factories, what="factory", in_full=in_full)
    module = called(
        f"the factory {path!r}",
        lambda: factory(input_shape=input_shape, classes=classes, **architecture.options),
        in_full=in_full,
        advice="it gets input_shape, classes and the architecture's options, all by name",
        on=TypeError,
    )
    if not isinstance(module, nn.Module):
        raise RunFailedError(
            f"the factory {path!r} must return a torch.nn.Module, not {type(module).__name__}"
        )
    module = _uncompiled(module)
    require_supported(module)
    return called(
        f"the network of {path!r}, moved to the CPU in float32,",
        lambda: module.cpu().float(),
        in_full=in_full,
    )


def _uncompiled(module: nn.Module) -> nn.Module:
    """Return the network as it was before ``torch.compile``, which changes its tensors' names.

    Compiled code is written to disk and run by other processes, which the sealed phase refuses.
    """
    if "torch._dynamo" not in sys.modules:
        return module
    compiled = torch._dynamo.OptimizedModule  # noqa: SLF001 - it has no other name
    while isinstance(module, compiled):
        module = module._orig_mod  # noqa: SLF001
    for layer in list(module.modules()):
        layer._compiled_call_impl = None  # noqa: SLF001 - set by Module.compile
        for name, child in layer.named_children():
            if isinstance(child, compiled):
                setattr(layer, name, _uncompiled(child))
    return module


def _require_fit(
    module: nn.Module, inputs: torch.Tensor, wanted: tuple[int, ...], *, in_full: bool
) -> None:
    """Run two records through the network, which also materialises lazy layers."""
    module.eval()
    shape = list(inputs.shape[1:])
    with torch.no_grad():
        outputs = called(
            f"the network, given {inputs.dtype} features of shape {shape},".replace("torch.", ""),
            lambda: module(inputs),
            in_full=in_full,
        )
    said = f"shape [n, {', '.join(map(str, wanted))}], as its task asks for"
    if not isinstance(outputs, torch.Tensor):
        raise RunFailedError(
            f"the network must return a tensor of {said}, not {type(outputs).__name__}: return "
            "it alone"
        )
    if outputs.shape != (2, *wanted):
        raise RunFailedError(
            f"the network must return a tensor of {said}, but for 2 records it returns "
            f"{list(outputs.shape)}"
        )
    if not outputs.is_floating_point():
        raise RunFailedError(f"the network must return floating-point numbers, not {outputs.dtype}")
    module.train()
