"""The gradient of a batch without noise: in parts, and in the recipe's precision.

The noisy and tracked phases take the parts from here and nothing else: never the precision.
"""

from collections.abc import Iterable
from typing import Final

import torch

from workers.training.tasks.task import INPUTS, Batch, Forward, Task

_BFLOAT16: Final = "bfloat16"


def parts_of(batch: Batch, parts: int) -> list[tuple[Batch, float]]:
    """Return a batch in parts, each with its share of the records.

    Their sizes differ by at most one. No part has a single record, which BatchNorm cannot process,
    if the batch has more: there are fewer parts then.
    """
    records = len(batch[INPUTS])
    parts = min(parts, max(1, records // 2))
    if parts == 1:
        return [(batch, 1.0)]
    split = zip(*(tensor.tensor_split(parts) for tensor in batch.values()), strict=True)
    named = [dict(zip(batch, part, strict=True)) for part in split]
    return [(part, len(part[INPUTS]) / records) for part in named]


def add_gradient(
    module: Forward, task: Task, parts: Iterable[tuple[Batch, float]], *, precision: str
) -> torch.Tensor:
    """Add the gradient of a batch's mean loss; return that loss, detached, 0-dim.

    The batch comes in parts with their shares, of which a process may have a few: then both are
    what these add to the whole batch's.

    In ``bfloat16`` the forward pass runs under autocast; the loss is computed in float32, and
    weights and gradients keep their dtype.
    """
    total: torch.Tensor | None = None
    forward = _halved(module) if precision == _BFLOAT16 else module
    for part, share in parts:
        loss = task.loss(forward, part).mean()
        if share != 1.0:
            loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach() if total is None else total + loss.detach()
    return torch.zeros(()) if total is None else total


def _halved(module: Forward) -> Forward:
    """Return the network with its arithmetic in bfloat16, and its outputs in float32."""

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
            outputs: torch.Tensor = module(*inputs)
        return outputs.to(torch.float32)

    return forward
