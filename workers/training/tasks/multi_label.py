"""Multi-label classification: any number of labels a record."""

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from app.domain.tasks.built_in import MultiLabelSpec
from workers.training.tasks import metrics
from workers.training.tasks.augmented import Augmented
from workers.training.tasks.task import INPUTS, TARGET, Arrays, Batch, Forward, weighted


class MultiLabel(Augmented[MultiLabelSpec]):
    """Logistic loss per label, added up: logits [n, labels], targets 0 or 1 of the same shape."""

    headline = "f1"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's sum of logistic losses in nats, [n]."""
        logits, smoothing = module(batch[INPUTS]), self.spec.label_smoothing
        target = batch[TARGET].to(logits.dtype)
        target = target * (1 - smoothing) + smoothing / 2
        losses = binary_cross_entropy_with_logits(logits, target, reduction="none")
        if self.spec.class_weights:
            losses = losses * losses.new_tensor(self.spec.class_weights)
        return weighted(losses.sum(dim=1), batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``probabilities`` [n, labels]."""
        return {"probabilities": module(batch[INPUTS]).sigmoid()}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return accuracy over all labels and over whole records, macro F1, AUC, calibration."""
        probabilities, target = predictions["probabilities"], batch[TARGET]
        return metrics.of_labels(probabilities, target, calibrated=self.calibrated)

    def baseline(self, batch: Arrays) -> float | None:
        """Return the F1 of giving every record all labels, which of no other answer is larger.

        The most frequent answer to a rare label is that it is absent, and has an F1 of 0.
        """
        truth = batch[TARGET] > 0.5
        return metrics.of_labels(np.ones_like(truth), truth)["f1"]
