"""Classification: one class a record."""

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import cross_entropy

from workers.tasks import metrics
from workers.tasks.augmented import Augmented
from workers.tasks.task import INPUTS, TARGET, Arrays, Batch, Forward, weighted


@dataclass(frozen=True)
class Classification(Augmented):
    """Softmax cross-entropy over classes: logits [n, classes], targets int64 [n].

    Attributes:
        class_weights: a factor for the loss of each class's records; none: 1 for each.
        label_smoothing: share of the target that is spread over all classes, from 0 to below 1.
        calibrated: whether the outputs are logits; a ridge head's scores are not, and yield no
            probabilities.
    """

    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    calibrated: bool = True
    headline: str = "accuracy"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's cross-entropy in nats, [n]."""
        target = batch[TARGET]
        losses = cross_entropy(
            module(batch[INPUTS]), target, reduction="none", label_smoothing=self.label_smoothing
        )
        if self.class_weights:
            losses = losses * losses.new_tensor(self.class_weights)[target]
        return weighted(losses, batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``probabilities`` [n, classes]."""
        return {"probabilities": module(batch[INPUTS]).softmax(dim=1)}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return accuracy, macro F1, calibration error and, of two classes, AUC."""
        probabilities, target = predictions["probabilities"], batch[TARGET]
        return metrics.of_classes(probabilities, target, calibrated=self.calibrated)


CLASSIFICATION: Final = Classification()
"""Without weights and smoothing."""
