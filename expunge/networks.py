"""Which architecture of the service a user's own network is: what a worker can build again.

A module that exists in one process only, such as a notebook's, cannot be trained in another. So it
must be one of the shapes that the service builds itself, or come from a factory that can be
imported where workers run.
"""

import math
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

import torch
from torch import nn

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import InvalidInputError
from app.domain.schema import InputSchema
from app.domain.tasks.spec import TaskSpec
from workers.training.networks.architectures import build

Model = nn.Module | Callable[..., nn.Module] | str | Mapping[str, Any]
_ADVICE: Final = (
    "put a function in a module of its own that workers can import; it takes input_shape, classes "
    "and options by name and returns the network. Then pass that function, or its path "
    "'package.module:function'"
)


def architecture_of(
    model: Model, options: Mapping[str, Any] | None, spec: TaskSpec, schema: InputSchema
) -> ArchitectureSpec:
    """Return the description by which workers build the same network.

    A factory is called here once, as a worker will, so that its errors are shown at once.

    Args:
        model: ``Linear``, or a ``Sequential`` of ``Flatten``, ``Linear`` and ``ReLU``; a factory or
            its import path; or an architecture as a definition has it.
        options: the factory's, by name.
        spec: what the network is to learn.
        schema: of what it reads.

    Raises:
        InvalidInputError: a worker could not build it, or it does not fit the data.
        RunFailedError: what the factory raised, or why its network does not fit.
    """
    if isinstance(model, nn.Module):
        _refuse_options(options)
        return _inferred(model, spec, schema)
    if isinstance(model, Mapping):
        _refuse_options(options)
        return ArchitectureSpec.from_json(model)
    path = model if isinstance(model, str) else _path_of(model)
    architecture = ArchitectureSpec(name="custom", factory=path, options=dict(options or {}))
    build(
        architecture,
        input_shape=schema.shape,
        classes=schema.classes,
        allowed_factories=[path],
        tokens=schema.tokens,
        task=spec,
        in_full=True,
    )
    return architecture


def put_into(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a model's tensors into a network of the same shape.

    Tensors go by their names; if the network's names are others, as with a ``Sequential`` that has
    no ``Flatten``, by their order.

    Raises:
        InvalidInputError: the network has other tensors; it is left as it was.
    """
    state = module.state_dict()
    if state.keys() != tensors.keys():
        # Only what was inferred from a list of layers has an order that means something.
        if not _is_plain(module) or len(state) != len(tensors):
            other = sorted(state.keys() ^ tensors.keys())
            raise InvalidInputError(f"the network has other tensors than the model: {other[0]}, …")
        tensors = dict(zip(state, _in_order(tensors), strict=True))
    for name, tensor in state.items():
        if tensor.shape != tensors[name].shape:
            raise InvalidInputError(
                f"{name} has shape {list(tensor.shape)} in the network, and "
                f"{list(tensors[name].shape)} in the model"
            )
    module.load_state_dict(dict(tensors))


def _refuse_options(options: Mapping[str, Any] | None) -> None:
    if options:
        raise InvalidInputError("options are for a factory; here the model itself has them")


def _layers(module: nn.Module) -> list[nn.Module]:
    return list(module) if type(module) is nn.Sequential else [module]


def _is_plain(module: nn.Module) -> bool:
    return all(type(each) in (nn.Flatten, nn.Linear, nn.ReLU) for each in _layers(module))


def _in_order(tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return weight and bias of each layer, the first layer first: files sort them by name."""

    def place(name: str) -> tuple[int, bool]:
        layer, _, kind = name.partition(".")
        return int(layer), kind == "bias"

    try:
        return [tensors[name] for name in sorted(tensors, key=place)]
    except ValueError as error:
        raise InvalidInputError("the model is no list of layers, as the network is") from error


def _inferred(module: nn.Module, spec: TaskSpec, schema: InputSchema) -> ArchitectureSpec:
    layers = _layers(module)
    if type(layers[0] if layers else None) is nn.Flatten:
        del layers[0]
    linear, between = layers[::2], layers[1::2]
    if (
        len(layers) % 2 == 0
        or not all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        or not all(type(layer) is nn.ReLU for layer in between)
    ):
        raise InvalidInputError(
            f"workers build Linear layers with biases and ReLU between them by themselves, and "
            f"this {type(module).__name__} has others, or was built by a call that it does not "
            f"remember: {_ADVICE}"
        )
    if schema.tokens:
        raise InvalidInputError(f"Linear layers do not read tokens: {_ADVICE}")
    widths = [int(layer.in_features) for layer in linear]  # type: ignore[arg-type]
    inputs, outputs = math.prod(schema.shape), int(linear[-1].out_features)  # type: ignore[arg-type]
    if widths[0] != inputs:
        raise InvalidInputError(
            f"the inputs become {inputs} features, and the first layer takes {widths[0]}"
        )
    if outputs != spec.outputs:
        raise InvalidInputError(
            f"the task {spec.name} has {spec.outputs} outputs, and the last layer gives {outputs}"
        )
    for layer, following in pairwise(linear):
        if layer.out_features != following.in_features:
            raise InvalidInputError("a layer takes another width than the one before it gives")
    if len(linear) == 1:
        return ArchitectureSpec(name="logistic")
    return ArchitectureSpec(name="mlp", options={"hidden": widths[1:]})


def _path_of(factory: Callable[..., nn.Module]) -> str:
    """Return the import path of a function or a class."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    if module in (None, "__main__") or getattr(sys.modules.get(str(module)), name, None) is None:
        raise InvalidInputError(
            f"{name or type(factory).__name__} cannot be imported by another process: {_ADVICE}"
        )
    return f"{module}:{name}"
