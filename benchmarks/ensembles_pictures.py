"""EfficientNet-Lite0, fine-tuned whole on a part of CIFAR-10, as a case for ensembles.

The public weights learned from ImageNet (``benchmarks.public_features``). Normalisation keeps their
statistics, which are constants then, as a small member's own would be worse.
"""

from importlib import import_module
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.nn.functional import batch_norm, interpolate

from app.domain.recipes.groups import ParameterGroup
from app.domain.recipes.recipe import TrainingRecipe
from app.domain.tasks.classification import ClassificationSpec
from benchmarks.data import CLASSES, Pictures, load
from benchmarks.ensembles_cases import Case
from benchmarks.public_features import LAST_LAYER, network
from workers.training.examples import Examples, classified

RECORDS: Final = 3000
TESTED: Final = 1000
PIXELS: Final = 96
_BODY: Final = "body."
_LAST: Final = "_fc"
RECIPE: Final = TrainingRecipe(
    learning_rate=0.01,
    groups=(ParameterGroup(f"{_BODY}{_LAST}.*", learning_rate=0.1),),
    momentum=0.9,
    batch_size=16,
    epochs=4,
    clip_norm=2.0,
)


class KeptNorm(nn.Module):
    """Batch normalisation by constant statistics; scale and shift are trained.

    Args:
        layer: whose tensors are taken over.
    """

    def __init__(self, layer: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)
        self._eps = layer.eps

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [n, channels, height, width], normalised."""
        return batch_norm(
            inputs,
            self.get_buffer("running_mean"),
            self.get_buffer("running_var"),
            self.weight,
            self.bias,
            eps=self._eps,
        )


class Enlarged(nn.Module):
    """A network that sees pictures enlarged.

    Args:
        body: reads pictures of so many pixels a side.
        pixels: a side.
    """

    def __init__(self, body: nn.Module, pixels: int) -> None:
        super().__init__()
        self.body = body
        self._pixels = pixels

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the body's outputs of pictures between -1 and 1, [n, 3, height, width]."""
        size = (self._pixels, self._pixels)
        larger = interpolate(pictures, size=size, mode="bicubic", align_corners=False)
        outputs: torch.Tensor = self.body(larger.contiguous(memory_format=torch.channels_last))
        return outputs


def cifar10(*, records: int = RECORDS, tested: int = TESTED, pixels: int = PIXELS) -> Case:
    """Return the case, on so many pictures; each is a person's.

    Raises:
        FileNotFoundError: CIFAR-10 is not in the data folder.
        ModuleNotFoundError: the public network is not installed.
    """
    pictures = load("cifar10", stand_in=False)
    train, test = _some(pictures, records=records, tested=tested)
    public = network()
    kept = Enlarged(_with_kept_norms(public), pixels)
    weights = {
        name: tensor.clone()
        for name, tensor in kept.state_dict().items()
        if not name.startswith(f"{_BODY}{_LAST}.")
    }

    seen = Enlarged(_LastLayer(public), pixels).eval()
    return Case(
        name="CIFAR-10, EfficientNet-Lite0",
        note=f"{records:,} pictures of CIFAR-10 at {pixels} x {pixels} pixels, tested on "
        f"{tested:,} others; all of EfficientNet-Lite0 is fine-tuned from its public weights. "
        f"{pictures.note}",
        train=train,
        test=test,
        person=np.arange(records),
        task=ClassificationSpec(classes=CLASSES),
        random=lambda: Enlarged(_fresh(), pixels),
        recipe=RECIPE,
        public=weights,
        features=seen,
        feature_range=32.0,
        sizes=(1, 8, 4, 16, 32),
        answered=(8,),
    )


class _LastLayer(nn.Module):
    """The averages of the last layer, [n, 1280].

    Args:
        body: EfficientNet-Lite0.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self._body = body

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        layer: torch.Tensor = self._body.extract_features(pictures)
        return layer.mean((2, 3))


def _fresh() -> nn.Module:
    """Return the network as its own package initialises it, for ten classes."""
    package = import_module("efficientnet_lite_pytorch").EfficientNet
    body: nn.Module = package.from_name("efficientnet-lite0")
    body.set_submodule(_LAST, nn.Linear(LAST_LAYER, CLASSES))
    return _with_kept_norms(body)


def _with_kept_norms(body: nn.Module) -> nn.Module:
    for path, layer in list(body.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            body.set_submodule(path, KeptNorm(layer))
    return body


def _some(pictures: Pictures, *, records: int, tested: int) -> tuple[Examples, Examples]:
    """Return some of the pictures, drawn with a fixed seed; a network sees them from -1 to 1."""
    draws = np.random.default_rng(3)
    train, test = (
        part.select(draws.permutation(len(part))[:count])
        for part, count in ((pictures.train, records), (pictures.test, tested))
    )
    return _from_minus_one(train), _from_minus_one(test)


def _from_minus_one(examples: Examples) -> Examples:
    return classified(examples.inputs, examples.target, offset=127.0, scale=1 / 128)
