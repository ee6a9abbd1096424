"""The pictures that benchmarks train on: MNIST and CIFAR-10 from a folder, else small digits.

The folder is EXPUNGE_BENCH_DATA, by default ``../shared/data`` beside the repository. It holds
``mnist.npz`` and ``cifar10_jpeg.npz``. Where a file is missing, scikit-learn's 8 x 8 digits stand
in, and the data's note says so: it belongs beside every figure.
"""

import io
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from app.domain.architectures import PRESETS, ArchitectureSpec
from workers.training.examples import Examples, classified
from workers.training.networks.architectures import build
from workers.training.tasks.task import INPUTS

CLASSES: Final = 10
_DIGITS_HELD_OUT: Final = 5  # every fifth digit is for testing


@dataclass(frozen=True, eq=False)
class Pictures:
    """A data set with the network that Koloskova et al. 2025 train on it.

    Attributes:
        name: ``mnist``, ``cifar10`` or ``digits``; what was really loaded.
        architecture: the paper's network.
        train, test: uint8 pictures; offset and scale bring them to mean 0 and deviation 1.
        note: what a reader of the figures must know of the data; may be empty.
    """

    name: str
    architecture: ArchitectureSpec
    train: Examples = field(repr=False)
    test: Examples = field(repr=False)
    note: str = ""

    def to(self, device: torch.device) -> "Pictures":
        """Return the same pictures on ``device``."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))


def network_of(
    architecture: ArchitectureSpec, examples: Examples, *, classes: int = CLASSES
) -> nn.Module:
    """Return an architecture for records like these, as it is initialised."""
    return build(
        architecture,
        input_shape=tuple(examples.inputs.shape[1:]),
        classes=classes,
        allowed_factories=(),
    )


def outputs_of(module: Callable[[torch.Tensor], torch.Tensor], examples: Examples) -> torch.Tensor:
    """Return what a module makes of all records' inputs, [n, …]."""
    with torch.inference_mode():
        batches = examples.in_order(500, device=torch.device("cpu"))
        return torch.cat([module(each[INPUTS]) for each in batches])


def data_folder() -> Path:
    """Return the folder of the data sets; it may be missing."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("EXPUNGE_BENCH_DATA", beside))


def load(name: str, *, stand_in: bool = True) -> Pictures:
    """Return a data set by its name; digits where another one's file is missing."""
    if name == "digits":
        return _digits("")
    file, read = _FILES[name]
    path = data_folder() / file
    if path.exists():
        with np.load(path) as arrays:
            return read(arrays)
    if stand_in:
        return _digits(f"{file} was not found: scikit-learn's digits stand in for {name}")
    raise FileNotFoundError(f"{path}: see EXPUNGE_BENCH_DATA")


def _mnist(arrays: Mapping[str, NDArray[Any]]) -> Pictures:
    train, test = (
        _examples(
            torch.from_numpy(arrays[f"x_{part}"]), arrays[f"y_{part}"], mean=0.1307, std=0.3081
        )
        for part in ("train", "test")
    )
    return Pictures("mnist", PRESETS["koloskova_mnist"], train, test)


def _cifar10(arrays: Mapping[str, NDArray[Any]]) -> Pictures:
    train, test = (
        _examples(_decoded(arrays, part), arrays[f"y_{part}"], mean=0.4734, std=0.2516)
        for part in ("train", "test")
    )
    note = "pictures were stored as JPEG, which is lossy: accuracies differ a little from the usual"
    return Pictures("cifar10", PRESETS["koloskova_cifar"], train, test, note)


def _digits(note: str) -> Pictures:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images.reshape(-1, 8, 8).astype(np.uint8))
    held_out = np.arange(len(labels)) % _DIGITS_HELD_OUT == 0
    train, test = (
        classified(
            pixels[part], torch.from_numpy(labels[part].astype(np.int64)), offset=4.9, scale=1 / 6.0
        )
        for part in (~held_out, held_out)
    )
    return Pictures("digits", PRESETS["koloskova_mnist"], train, test, note)


def _decoded(arrays: Mapping[str, NDArray[Any]], part: str) -> torch.Tensor:
    """Return uint8 [n, 3, 32, 32], stored with the channels last, which convolutions prefer."""
    stored, offsets = arrays[f"jpeg_{part}"].tobytes(), arrays[f"offsets_{part}"]
    pictures = [
        np.asarray(Image.open(io.BytesIO(stored[start:end])))
        for start, end in itertools.pairwise(offsets)
    ]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


def _examples(pixels: torch.Tensor, labels: NDArray[Any], *, mean: float, std: float) -> Examples:
    """Return examples; ``mean`` and ``std`` are the data set's published ones, of 1 at most."""
    classes = torch.from_numpy(labels.astype(np.int64))
    return classified(pixels, classes, offset=255 * mean, scale=1 / (255 * std))


_FILES: Mapping[str, tuple[str, Callable[[Mapping[str, NDArray[Any]]], Pictures]]] = {
    "mnist": ("mnist.npz", _mnist),
    "cifar10": ("cifar10_jpeg.npz", _cifar10),
}
