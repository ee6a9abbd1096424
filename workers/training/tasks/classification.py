"""Classification: one class a record."""

from typing import Final

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from app.domain.tasks.built_in import ClassificationSpec
from workers.training.tasks import metrics
from workers.training.tasks.augmented import Augmented
from workers.training.tasks.task import INPUTS, TARGET, Arrays, Batch, Forward, weighted


class Classification(Augmented[ClassificationSpec]):
    """Softmax cross-entropy over classes: logits [n, classes], targets int64 [n]."""

    headline = "accuracy"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's cross-entropy in nats, [n]."""
        target, smoothing = batch[TARGET], self.spec.label_smoothing
        losses = cross_entropy(
            module(batch[INPUTS]), target, reduction="none", label_smoothing=smoothing
        )
        if self.spec.class_weights:
            losses = losses * losses.new_tensor(self.spec.class_weights)[target]
        return weighted(losses, batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``probabilities`` [n, classes]."""
        return {"probabilities": module(batch[INPUTS]).softmax(dim=1)}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return accuracy, macro F1, calibration error and, of two classes, AUC."""
        probabilities, target = predictions["probabilities"], batch[TARGET]
        return metrics.of_classes(probabilities, target, calibrated=self.calibrated)

    def baseline(self, batch: Arrays) -> float | None:
        """Return the share of the most frequent class."""
        target = batch[TARGET]
        return float(np.bincount(target).max() / len(target))


CLASSIFICATION: Final = Classification(ClassificationSpec(classes=2))
"""Without weights and smoothing; of any number of classes."""
