"""Regression: one or more numbers a record."""

import numpy as np
import torch
from torch.nn.functional import huber_loss, mse_loss

from app.domain.tasks.regression import HUBER, QUANTILE, RegressionSpec
from workers.tasks import metrics
from workers.tasks.augmented import Augmented
from workers.tasks.task import INPUTS, TARGET, Arrays, Batch, Forward, weighted


class Regression(Augmented[RegressionSpec]):
    """Half the squared error, Huber's or the quantile loss, added up over targets [n, targets]."""

    headline = "mae"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's loss, [n]."""
        predicted, spec = module(batch[INPUTS]), self.spec
        target = batch[TARGET].to(predicted.dtype)
        if spec.loss == HUBER:
            losses = huber_loss(predicted, target, reduction="none", delta=spec.threshold)
        elif spec.loss == QUANTILE:
            short = target - predicted
            losses = torch.maximum(spec.quantile * short, (spec.quantile - 1) * short)
        else:
            losses = mse_loss(predicted, target, reduction="none") / 2
        return weighted(losses.sum(dim=1), batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``numbers`` in the targets' units, float64 [n, targets]."""
        return {"numbers": self.spec.in_units(module(batch[INPUTS]).to(torch.float64))}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return mean absolute error, root mean squared error, both in units, and R²."""
        targets = self.spec.in_units(batch[TARGET].astype(np.float64))
        return metrics.of_numbers(predictions["numbers"], targets)
