"""Regression: one or more numbers a record."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import huber_loss, mse_loss

from app.domain.tasks.built_in import HUBER, QUANTILE, RegressionSpec
from workers.training.tasks import metrics
from workers.training.tasks.augmented import Augmented
from workers.training.tasks.task import INPUTS, TARGET, Arrays, Batch, Forward, weighted


class Regression(Augmented[RegressionSpec]):
    """Half the squared error, Huber's or the quantile loss, added up over targets [n, targets]."""

    @property
    def headline(self) -> str:  # type: ignore[override]
        """Return the mean absolute error, or the quantile loss where that is what is learned."""
        return "quantile_loss" if self.spec.loss == QUANTILE else "mae"

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
        """Return mean absolute error, root mean squared error, both in units, and R².

        Of a quantile there is also its loss, in units and a mean over targets.
        """
        found = metrics.of_numbers(predictions["numbers"], self._targets(batch))
        if self.spec.loss == QUANTILE:
            quantile, short = self.spec.quantile, self._targets(batch) - predictions["numbers"]
            losses = np.maximum(quantile * short, (quantile - 1) * short)
            found["quantile_loss"] = float(losses.mean())
        return found

    def baseline(self, batch: Arrays) -> float | None:
        """Return the first metric of each target's mean, or of its quantile if that is learned."""
        targets, answer = self._targets(batch), self._targets(batch).mean(axis=0)
        if self.spec.loss == QUANTILE:
            answer = np.quantile(targets, self.spec.quantile, axis=0, method="inverted_cdf")
        return self.metrics({"numbers": answer[None]}, batch)[self.headline]

    def _targets(self, batch: Arrays) -> NDArray[np.float64]:
        return np.asarray(self.spec.in_units(batch[TARGET].astype(np.float64)))
