"""EfficientNet-Lite0 with a last layer, as an operator's factory builds it."""

import safetensors.torch
import torch
from torch import nn

from expunge import backbones

LITE0 = f"{__name__}:lite0"
_FEATURES = 1280


def lite0(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the network, for small pictures."""
    body = backbones.efficientnet_lite0(input_shape=input_shape, classes=classes, size=32)
    return nn.Sequential(body, nn.Linear(_FEATURES, classes))


def public_lite0(*, input_shape: tuple[int, ...], classes: int) -> bytes:
    """Return the weights of its package, and those of a last layer of no meaning."""
    torch.manual_seed(7)
    network = lite0(input_shape=input_shape, classes=classes)
    public = backbones.INSTALLED["expunge.backbones:efficientnet_lite0"].read()
    missing = network[0].load_state_dict(  # type: ignore[operator]
        {name: each for name, each in public.items() if not name.startswith("_fc.")}, strict=False
    )
    assert not missing.unexpected_keys
    return safetensors.torch.save(dict(network.state_dict()))
