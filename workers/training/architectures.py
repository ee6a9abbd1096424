"""Builds a freshly initialised network from an ``ArchitectureSpec``."""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from app.domain import linear_head
from app.domain.architecture import ArchitectureSpec
from app.domain.errors import RunFailedError
from workers.training.linear_head import LinearHead

_ALLOW_LIST = "EXPUNGE_ALLOWED_FACTORIES"


def build(
    architecture: ArchitectureSpec,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    allowed_factories: Sequence[str],
) -> nn.Module:
    """Return a new network on the CPU that maps [n, *input_shape] to [n, classes] logits.

    A linear head is float64, every other network float32. Either takes float32 features.
    The initialisation draws from torch's global generator.

    Args:
        architecture: what to build.
        input_shape: shape of one record's features.
        classes: number of classes.
        allowed_factories: import paths that ``custom`` may name: ``package.module:factory`` or
            ``package.module:*``.

    Raises:
        RunFailedError: the factory is not allowed or cannot be imported, or the network does not
            fit the dataset. The message says what to change.
    """
    if architecture.name == "custom":
        module = _build_custom(architecture, input_shape, classes, allowed_factories)
    else:
        module = _ZOO[architecture.name](architecture.options, input_shape, classes)
    _require_fit(module, input_shape, classes)
    return module


def build_features(
    architecture: ArchitectureSpec,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    allowed_factories: Sequence[str],
) -> tuple[nn.Module, nn.Module]:
    """Return a network and the part of it that computes features: [n, *input_shape] to [n, d].

    A zoo network ends in a linear layer, which is left out. A factory's network is used as a whole,
    whatever its output's shape.

    Args:
        architecture: what to build.
        input_shape: shape of one record's features.
        classes: number of classes of the task that the network was trained for.
        allowed_factories: as for ``build``.

    Raises:
        RunFailedError: as for ``build``, or the zoo network does not end in a linear layer.
    """
    if architecture.name == "custom":
        network = _build_custom(architecture, input_shape, classes, allowed_factories)
        return network, nn.Sequential(network, nn.Flatten())
    network = build(
        architecture,
        input_shape=input_shape,
        classes=classes,
        allowed_factories=allowed_factories,
    )
    if not isinstance(network, nn.Sequential) or not isinstance(network[-1], nn.Linear):
        raise RunFailedError(f"the architecture {architecture.name!r} cannot be a frozen backbone")
    return network, nn.Sequential(*list(network)[:-1], nn.Flatten())


def _build_logistic(_: Mapping[str, Any], input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return _build_mlp({"hidden": []}, input_shape, classes)


def _build_mlp(options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    for hidden in options["hidden"]:
        layers += [_initialised(nn.Linear(width, hidden)), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, _initialised(nn.Linear(width, classes)))


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
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), _initialised(nn.Linear(width, classes))]
    return nn.Sequential(*layers, *head)


def _build_linear_head(
    options: Mapping[str, Any], input_shape: tuple[int, ...], classes: int
) -> nn.Module:
    return LinearHead(
        math.prod(input_shape),
        classes,
        feature_norm=options.get("feature_norm"),
        bias=options.get("bias", linear_head.DEFAULT_BIAS),
    )


class _AddChannel(nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.unsqueeze(1)


def _initialised(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """He's normal initialisation, biases 0."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


_ZOO: Mapping[str, Callable[[Mapping[str, Any], tuple[int, ...], int], nn.Module]] = {
    "logistic": _build_logistic,
    "mlp": _build_mlp,
    "cnn": _build_cnn,
    "linear_head": _build_linear_head,
}


def _build_custom(
    architecture: ArchitectureSpec,
    input_shape: tuple[int, ...],
    classes: int,
    allowed_factories: Sequence[str],
) -> nn.Module:
    path = cast("str", architecture.factory)
    package, _, attribute = path.partition(":")
    if path not in allowed_factories and f"{package}:*" not in allowed_factories:
        raise RunFailedError(
            f"the factory {path!r} is not allowed on this worker: add it to {_ALLOW_LIST}"
        )
    try:
        factory = getattr(importlib.import_module(package), attribute)
    except (ImportError, AttributeError) as error:
        raise RunFailedError(
            f"the factory {path!r} cannot be imported on this worker "
            f"({type(error).__name__}): install its package there"
        ) from error
    try:
        module = factory(input_shape=input_shape, classes=classes, **architecture.options)
    except Exception as error:
        raise RunFailedError(
            f"the factory {path!r} failed with {type(error).__name__}: check its options"
        ) from error
    if not isinstance(module, nn.Module):
        raise RunFailedError(f"the factory {path!r} must return a torch.nn.Module")
    return module.cpu().float()


def _require_fit(module: nn.Module, input_shape: tuple[int, ...], classes: int) -> None:
    """Run two records of zeros through the network, which also materialises lazy layers."""
    module.eval()
    try:
        with torch.no_grad():
            logits = module(torch.zeros((2, *input_shape)))
    except Exception as error:
        raise RunFailedError(
            f"the network cannot read features of shape {list(input_shape)} "
            f"({type(error).__name__})"
        ) from error
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, classes):
        raise RunFailedError(
            f"the network must return one logit for each of {classes} classes: shape [n, {classes}]"
        )
    module.train()
