"""Regression: one or more numbers a record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import huber_loss, mse_loss

from workers.tasks import metrics
from workers.tasks.augmented import Augmented
from workers.tasks.task import INPUTS, TARGET, Arrays, Batch, Forward, weighted

SQUARED, HUBER, QUANTILE = "squared", "huber", "quantile"


def _as_they_are(outputs: Any) -> Any:  # noqa: ANN401 - arrays of NumPy and of PyTorch
    return outputs


@dataclass(frozen=True)
class Regression(Augmented):
    """Half the squared error, Huber's or the quantile loss, added up over targets [n, targets].

    Attributes:
        kind: ``squared``, ``huber`` or ``quantile``.
        threshold: of Huber's loss: the error above which it grows linearly.
        quantile: of the quantile loss, between 0 and 1.
        in_units: turns the network's outputs into numbers in the targets' units.
    """

    kind: str = SQUARED
    threshold: float = 1.0
    quantile: float = 0.5
    in_units: Callable[[Any], Any] = _as_they_are
    headline: str = "mae"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's loss, [n]."""
        predicted = module(batch[INPUTS])
        target = batch[TARGET].to(predicted.dtype)
        if self.kind == HUBER:
            losses = huber_loss(predicted, target, reduction="none", delta=self.threshold)
        elif self.kind == QUANTILE:
            short = target - predicted
            losses = torch.maximum(self.quantile * short, (self.quantile - 1) * short)
        else:
            losses = mse_loss(predicted, target, reduction="none") / 2
        return weighted(losses.sum(dim=1), batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``numbers`` in the targets' units, float64 [n, targets]."""
        return {"numbers": self.in_units(module(batch[INPUTS]).to(torch.float64))}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return mean absolute error, root mean squared error, both in units, and R²."""
        targets = self.in_units(batch[TARGET].astype(np.float64))
        return metrics.of_numbers(predictions["numbers"], targets)
