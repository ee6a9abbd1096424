"""Whole networks in the time of an exact head: what retraining without public features buys.

A convolutional network from scratch, and all of EfficientNet-Lite0 fine-tuned from its public
weights, each until its time is over. Plain SGD with momentum, a rate that falls to zero as the time
runs out, and random mirror images.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.data import CLASSES, Pictures
from benchmarks.public_features import LAST_LAYER, inputs_of, network
from workers.training.networks.architectures import build
from workers.training.tasks.task import INPUTS

_MOMENTUM: Final = 0.9
_CLIP_NORM: Final = 2.0
_SEED: Final = 1
_AT_ONCE: Final = 250
FINE_TUNED_PIXELS: Final = 64


def from_scratch(pictures: Pictures, *, seconds: float) -> dict[str, Any]:
    """Train the paper's convolutional network; return its row."""
    module = build(
        pictures.architecture,
        input_shape=tuple(pictures.train.inputs.shape[1:]),
        classes=CLASSES,
        allowed_factories=(),
    )

    def convert(raw: torch.Tensor) -> torch.Tensor:
        return pictures.train.form.seen(INPUTS, raw)

    images = _trained(module, pictures, convert, seconds=seconds, rate=0.05, batch_size=64)
    accuracy = _accuracy(module, pictures, convert, most=None)
    return _row("network from scratch", seconds, images, accuracy, pictures.train.inputs.shape[-1])


def fine_tuned(
    pictures: Pictures, *, seconds: float, most_test_pictures: int | None = None
) -> dict[str, Any]:
    """Fine-tune all of EfficientNet-Lite0; return its row."""
    module = network()
    head = nn.Linear(LAST_LAYER, CLASSES)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    module.set_submodule("_fc", head)

    def convert(raw: torch.Tensor) -> torch.Tensor:
        return inputs_of(raw, FINE_TUNED_PIXELS)

    images = _trained(module, pictures, convert, seconds=seconds, rate=0.02, batch_size=32)
    accuracy = _accuracy(module, pictures, convert, most=most_test_pictures)
    return _row("EfficientNet-Lite0, all of it", seconds, images, accuracy, FINE_TUNED_PIXELS)


def _trained(
    module: nn.Module,
    pictures: Pictures,
    convert: Callable[[torch.Tensor], torch.Tensor],
    *,
    seconds: float,
    rate: float,
    batch_size: int,
) -> int:
    """Train for so long; return how many pictures were seen."""
    draws = torch.Generator().manual_seed(_SEED)
    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=_MOMENTUM, nesterov=True)
    module.train()
    for part in module.modules():  # statistics of a few small batches are worse than public ones
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
    started, seen = time.perf_counter(), 0
    while (spent := (time.perf_counter() - started) / seconds) < 1:
        rows = torch.randint(len(pictures.train), (batch_size,), generator=draws)
        inputs = convert(pictures.train.inputs[rows])
        if torch.rand((), generator=draws) < 0.5 and inputs.dim() == 4:
            inputs = inputs.flip(-1)
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - spent)
        optimizer.zero_grad()
        cross_entropy(module(inputs), pictures.train.target[rows]).backward()
        nn.utils.clip_grad_norm_(module.parameters(), _CLIP_NORM)
        optimizer.step()
        seen += batch_size
    return seen


@torch.inference_mode()
def _accuracy(
    module: nn.Module,
    pictures: Pictures,
    convert: Callable[[torch.Tensor], torch.Tensor],
    *,
    most: int | None,
) -> float:
    module.eval()
    test = pictures.test
    rows = torch.arange(0, len(test), -(-len(test) // (most or len(test))))  # they lie by class
    right = 0
    for some in rows.split(_AT_ONCE):
        answers = module(convert(test.inputs[some])).argmax(dim=1)
        right += int((answers == test.target[some]).sum())
    return right / len(rows)


def _row(name: str, seconds: float, images: int, accuracy: float, pixels: int) -> dict[str, Any]:
    return {
        "network": name,
        "pixels": pixels,
        "seconds": seconds,
        "gradients": images,
        "accuracy": accuracy,
    }
