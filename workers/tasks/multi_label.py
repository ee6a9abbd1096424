"""Multi-label classification: any number of labels a record."""

from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from workers.tasks import metrics
from workers.tasks.augmented import Augmented
from workers.tasks.task import INPUTS, TARGET, Arrays, Batch, Forward, weighted


@dataclass(frozen=True)
class MultiLabel(Augmented):
    """Logistic loss per label, added up: logits [n, labels], targets 0 or 1 of the same shape.

    Attributes:
        class_weights: a factor for each label's loss; none: 1 for each.
        label_smoothing: moves 0 and 1 by half of it towards one half.
        calibrated: whether the outputs are logits; a ridge head's scores are not, and yield no
            probabilities.
    """

    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    calibrated: bool = True
    headline: str = "f1"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's sum of logistic losses in nats, [n]."""
        logits = module(batch[INPUTS])
        target = batch[TARGET].to(logits.dtype)
        target = target * (1 - self.label_smoothing) + self.label_smoothing / 2
        losses = binary_cross_entropy_with_logits(logits, target, reduction="none")
        if self.class_weights:
            losses = losses * losses.new_tensor(self.class_weights)
        return weighted(losses.sum(dim=1), batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``probabilities`` [n, labels]."""
        return {"probabilities": module(batch[INPUTS]).sigmoid()}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return accuracy over all labels and over whole records, macro F1, AUC, calibration."""
        probabilities, target = predictions["probabilities"], batch[TARGET]
        return metrics.of_labels(probabilities, target, calibrated=self.calibrated)
