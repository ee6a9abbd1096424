"""The gradient of a batch without noise: in parts, and in the recipe's precision.

The noisy and tracked phases take the parts from here and nothing else: never the precision.
"""

from contextlib import nullcontext
from typing import Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workers.training.data import Batch

_BFLOAT16: Final = "bfloat16"


def parts_of(batch: Batch, parts: int) -> list[tuple[Batch, float]]:
    """Return a batch in parts, each with its share of the records.

    Their sizes differ by at most one. No part has a single record, which BatchNorm cannot process,
    if the batch has more: there are fewer parts then.
    """
    features, labels = batch
    parts = min(parts, max(1, len(labels) // 2))
    if parts == 1:
        return [(batch, 1.0)]
    split = zip(features.tensor_split(parts), labels.tensor_split(parts), strict=True)
    return [(part, len(part[1]) / len(labels)) for part in split]


def add_gradient(
    module: nn.Module, batch: Batch, *, micro_batches: int, precision: str
) -> torch.Tensor:
    """Add the gradient of a batch's mean cross-entropy; return that loss, detached, 0-dim.

    In ``bfloat16`` the forward pass runs under autocast; the loss is computed in the logits' own
    precision or float32, and weights and gradients keep their dtype.
    """
    total: torch.Tensor | None = None
    for (features, labels), share in parts_of(batch, micro_batches):
        with _computing_in(precision, features.device):
            logits = module(features)
        if precision == _BFLOAT16:
            logits = logits.to(torch.float32)
        loss = cross_entropy(logits, labels)
        if share != 1.0:
            loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach() if total is None else total + loss.detach()
    return torch.zeros(()) if total is None else total


def _computing_in(precision: str, device: torch.device) -> "torch.autocast | nullcontext[None]":
    if precision != _BFLOAT16:
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
