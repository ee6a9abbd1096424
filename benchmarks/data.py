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
_LOSSY: Final = (
    "pictures were stored as JPEG, which is lossy: accuracies differ a little from the usual"
)
_FILES: Final = {  # with the network, and the published mean and deviation of pixels up to 1
    "mnist": ("mnist.npz", "koloskova_mnist", 0.1307, 0.3081, ""),
    "cifar10": ("cifar10_jpeg.npz", "koloskova_cifar", 0.4734, 0.2516, _LOSSY),
}
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


def load(name: str, *, stand_in: bool = True) -> Pictures:
    """Return a data set by its name; digits where another one's file is missing."""
    if name == "digits":
        return _digits("")
    file, preset, mean, std, note = _FILES[name]
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("EXPUNGE_BENCH_DATA", beside)) / file
    if not path.exists() and stand_in:
        return _digits(f"{file} was not found: scikit-learn's digits stand in for {name}")
    if not path.exists():
        raise FileNotFoundError(f"{path}: see EXPUNGE_BENCH_DATA")
    parts = list[Examples]()
    with np.load(path) as arrays:
        for part in ("train", "test"):
            known = f"x_{part}" in arrays
            pixels = torch.from_numpy(arrays[f"x_{part}"]) if known else _decoded(arrays, part)
            labels = torch.from_numpy(arrays[f"y_{part}"].astype(np.int64))
            parts.append(classified(pixels, labels, offset=255 * mean, scale=1 / (255 * std)))
    return Pictures(name, PRESETS[preset], *parts, note)


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
