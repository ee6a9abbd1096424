"""Evaluates a network on held-out examples."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from app.domain.errors import RunFailedError
from workers.training.data import Examples

EVALUATION_BATCH = 1024


@dataclass(frozen=True)
class Evaluation:
    """The result of ``evaluate``.

    Attributes:
        accuracy: share of examples whose largest logit is their label.
        mean_loss: mean cross-entropy in nats.
        examples: number of examples.
    """

    accuracy: float
    mean_loss: float
    examples: int


def evaluate(module: nn.Module, examples: Examples) -> Evaluation:
    """Return accuracy and mean loss in evaluation mode; the module's mode is kept.

    Raises:
        RunFailedError: there are no examples.
    """
    if len(examples) == 0:
        raise RunFailedError("there are no held-out records to evaluate on")
    device = next(module.parameters()).device
    correct = torch.zeros((), dtype=torch.int64, device=device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    with evaluating(module):
        for features, labels in examples.in_order(EVALUATION_BATCH, device=device):
            logits = module(features)
            correct += (logits.argmax(dim=1) == labels).sum()
            loss_sum += cross_entropy(logits, labels, reduction="sum").double()
    return Evaluation(
        accuracy=int(correct) / len(examples),
        mean_loss=float(loss_sum) / len(examples),
        examples=len(examples),
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Compute without gradients in evaluation mode; every layer's own mode is restored."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for layer, training in modes:
            layer.training = training
