"""The built-in tasks: classification, several labels, regression and language models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    mse_loss,
)

from app.domain.scores import HIGHER_IS_BETTER
from app.domain.tasks.built_in import (
    HUBER,
    QUANTILE,
    ClassificationSpec,
    LanguageModelSpec,
    MultiLabelSpec,
    RegressionSpec,
    classification,
)
from app.domain.tasks.spec import FLIP, NOISE, SHIFT, TaskSpec
from app.registry.datasets.columns.encoding import NO_CLASS
from workers.training.tasks.task import INPUTS, TARGET, Arrays, Batch, Forward, weighted

Spec = TypeVar("Spec", bound=TaskSpec)


@dataclass(frozen=True)
class Augmented(Generic[Spec]):
    """What built-in tasks have in common.

    Attributes:
        spec: the description; its ``augment`` is carried out in its order.
        calibrated: whether the outputs are logits where the task is to classify; a ridge head's
            scores are not, and yield no probabilities.
    """

    spec: Spec
    calibrated: bool = True
    headline: ClassVar[str]

    @property
    def higher_is_better(self) -> bool:
        """Return which way the metric that is shown first is better."""
        return HIGHER_IS_BETTER[self.headline]

    def truth(self, batch: Batch) -> Batch:
        """Return all but the inputs, [n, …] by name."""
        return {name: each for name, each in batch.items() if name != INPUTS}

    def measured(self, batch: Batch) -> Batch:
        """Return the records of a batch whose target is known."""
        target = batch[TARGET]
        rows = ~target.isnan().any(dim=1) if target.is_floating_point() else target != NO_CLASS
        return batch if bool(rows.all()) else {name: each[rows] for name, each in batch.items()}

    def augment(self, batch: Batch) -> Batch:
        """Return a random variant of each record, by numbers of torch's own generator."""
        if not self.spec.augment:
            return batch
        inputs = batch[INPUTS]
        for each in self.spec.augment:
            inputs = _VARIANTS[each.name](inputs, each.amount)
        return batch | {INPUTS: inputs}


def _flipped(inputs: torch.Tensor, _: float) -> torch.Tensor:
    chosen = torch.rand(len(inputs)) < 0.5
    mask = chosen.to(inputs.device).reshape(-1, *[1] * (inputs.ndim - 1))
    return torch.where(mask, inputs.flip(-1), inputs)


def _shifted(inputs: torch.Tensor, pixels: float) -> torch.Tensor:
    most = int(pixels)
    height, width = inputs.shape[-2:]
    by = torch.randint(-most, most + 1, (2, len(inputs))).to(inputs.device)
    padded = torch.nn.functional.pad(inputs, (most, most, most, most))
    rows = torch.arange(height, device=inputs.device) + most - by[0][:, None]
    columns = torch.arange(width, device=inputs.device) + most - by[1][:, None]
    one = torch.arange(len(inputs), device=inputs.device)[:, None, None]
    if inputs.ndim == 3:
        return padded[one, rows[:, :, None], columns[:, None, :]]
    moved = padded.movedim(1, -1)[one, rows[:, :, None], columns[:, None, :]]
    return moved.movedim(-1, 1).contiguous()


_VARIANTS: Final[Mapping[str, Callable[[torch.Tensor, float], torch.Tensor]]] = {
    FLIP: _flipped,
    SHIFT: _shifted,
    NOISE: lambda inputs, std: inputs + std * torch.randn(inputs.shape).to(inputs.device),
}


class Classification(Augmented[ClassificationSpec]):
    """Softmax cross-entropy over classes: logits [n, classes], targets int64 [n]."""

    headline = "accuracy"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's cross-entropy in nats, [n]; 0 where the class is ``NO_CLASS``."""
        target, smoothing = batch[TARGET], self.spec.label_smoothing
        losses = cross_entropy(
            module(batch[INPUTS]),
            target,
            reduction="none",
            ignore_index=NO_CLASS,
            label_smoothing=smoothing,
        )
        if self.spec.class_weights:
            losses = losses * losses.new_tensor(self.spec.class_weights)[target.clamp(min=0)]
        return weighted(losses, batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``probabilities`` [n, classes]."""
        return {"probabilities": module(batch[INPUTS]).softmax(dim=1)}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return accuracy, macro F1, calibration error and, of two classes, AUC."""
        probabilities, target = predictions["probabilities"], batch[TARGET]
        return metrics_of_classes(probabilities, target, calibrated=self.calibrated)

    def baseline(self, batch: Arrays) -> float | None:
        """Return the share of the most frequent class."""
        target = batch[TARGET]
        return float(np.bincount(target).max() / len(target))


CLASSIFICATION: Final = Classification(classification(2))
"""Without weights and smoothing; of any number of classes."""


class MultiLabel(Augmented[MultiLabelSpec]):
    """Logistic loss per label, added up: logits [n, labels], targets 0 or 1 of the same shape."""

    headline = "f1"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's sum of logistic losses in nats, [n]; 0 where no label is known."""
        logits, smoothing = module(batch[INPUTS]), self.spec.label_smoothing
        target, known = _known(batch, logits.dtype)
        target = target * (1 - smoothing) + smoothing / 2
        losses = binary_cross_entropy_with_logits(logits, target, reduction="none")
        if self.spec.class_weights:
            losses = losses * losses.new_tensor(self.spec.class_weights)
        return weighted((losses * known).sum(dim=1), batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``probabilities`` [n, labels]."""
        return {"probabilities": module(batch[INPUTS]).sigmoid()}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return accuracy over all labels and over whole records, macro F1, AUC, calibration."""
        probabilities, target = predictions["probabilities"], batch[TARGET]
        return metrics_of_labels(probabilities, target, calibrated=self.calibrated)

    def baseline(self, batch: Arrays) -> float | None:
        """Return the F1 of giving every record all labels, which of no other answer is larger.

        The most frequent answer to a rare label is that it is absent, and has an F1 of 0.
        """
        truth = batch[TARGET] > 0.5
        return metrics_of_labels(np.ones_like(truth), truth)["f1"]


class Regression(Augmented[RegressionSpec]):
    """Half the squared error, Huber's or the quantile loss, added up over targets [n, targets]."""

    @property
    def headline(self) -> str:  # type: ignore[override]
        """Return the mean absolute error, or the quantile loss where that is what is learned."""
        return "quantile_loss" if self.spec.loss == QUANTILE else "mae"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's loss, [n]; 0 where no number is known."""
        predicted, spec = module(batch[INPUTS]), self.spec
        target, known = _known(batch, predicted.dtype)
        if spec.loss == HUBER:
            losses = huber_loss(predicted, target, reduction="none", delta=spec.threshold)
        elif spec.loss == QUANTILE:
            short = target - predicted
            losses = torch.maximum(spec.quantile * short, (spec.quantile - 1) * short)
        else:
            losses = mse_loss(predicted, target, reduction="none") / 2
        return weighted((losses * known).sum(dim=1), batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``numbers`` in the targets' units, float64 [n, targets]."""
        return {"numbers": self.spec.in_units(module(batch[INPUTS]).to(torch.float64))}

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return mean absolute error, root mean squared error, both in units, and R².

        Of a quantile there is also its loss, in units and a mean over targets.
        """
        found = metrics_of_numbers(predictions["numbers"], self._targets(batch))
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


def _known(batch: Batch, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers to learn, 0 in place of those that are missing, and 1 and 0 for which are."""
    target = batch[TARGET].to(dtype)
    return target.nan_to_num(), (~target.isnan()).to(dtype)


class LanguageModel(Augmented[LanguageModelSpec]):
    """Cross-entropy of each next token, averaged over a record's tokens: int64 [n, places].

    A record's loss is the mean over its own tokens, so that long texts count no more than short
    ones. Padding comes after a text and is never predicted; whether the network attends to it is
    the network's to say: a causal one cannot.
    """

    headline = "perplexity"

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return each record's mean cross-entropy in nats, [n]; 0 where nothing is predicted."""
        losses, predicted = self._losses(module, batch)
        return weighted(losses.sum(dim=1) / predicted.sum(dim=1).clamp(min=1), batch)

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return ``next_token`` [n], and of the text ``log_likelihood`` and ``tokens`` [n]."""
        logits = module(batch[INPUTS])
        losses, predicted = self._losses(lambda _: logits, batch)
        last = (batch[INPUTS] != self.spec.padding).sum(dim=1).clamp(min=1) - 1
        return {
            "next_token": logits[torch.arange(len(logits)), last].argmax(dim=1),
            "log_likelihood": -losses.sum(dim=1),
            "tokens": predicted.sum(dim=1),
        }

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:  # noqa: ARG002
        """Return perplexity over all tokens, if there is one; the text is its own target."""
        tokens = int(predictions["tokens"].sum())
        if not tokens:
            return {}
        mean = -float(predictions["log_likelihood"].astype(np.float64).sum()) / tokens
        return {"perplexity": float(np.exp(min(mean, 700.0)))}

    def truth(self, batch: Batch) -> Batch:
        """Return how often each token is to be predicted, [1, vocabulary]: texts may be long."""
        following = batch[INPUTS][:, 1:]
        counts = torch.bincount(
            following[following != self.spec.padding], minlength=self.spec.vocabulary
        )
        return {"counts": counts[None]}

    def baseline(self, batch: Arrays) -> float | None:
        """Return the perplexity of the tokens' frequencies, each counted once more.

        Without that, the frequencies of a short text would be a model of that text.
        """
        counts = batch["counts"].sum(axis=0)
        tokens = counts.sum()
        if not tokens:
            return None
        shares = (counts + 1) / (tokens + len(counts))
        return float(np.exp(-(counts * np.log(shares)).sum() / tokens))

    def _losses(self, module: Forward, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of each place but the last, and which of them are predicted."""
        inputs = batch[INPUTS]
        logits, following = module(inputs)[:, :-1], inputs[:, 1:]
        predicted = following != self.spec.padding
        target = following.masked_fill(~predicted, NO_CLASS)
        losses = cross_entropy(
            logits.transpose(1, 2), target, reduction="none", ignore_index=NO_CLASS
        )
        return losses, predicted


_BINS: Final = 15


def metrics_of_classes(
    probabilities: NDArray[Any], target: NDArray[Any], *, calibrated: bool = True
) -> dict[str, float]:
    """Return accuracy, macro F1 over the classes that occur, and calibration error.

    Of two classes there is also the area under the ROC curve, if both occur.

    Args:
        probabilities: [n, classes].
        target: whole numbers [n] below ``classes``.
        calibrated: whether they are probabilities; else only their order counts.
    """
    chosen = probabilities.argmax(axis=1)
    right, said, true = (
        np.bincount(some, minlength=probabilities.shape[1])
        for some in (target[chosen == target], chosen, target)
    )
    occurs = said + true > 0
    found = {
        "accuracy": float((chosen == target).mean()),
        "f1": _macro_f1(right[occurs], said[occurs], true[occurs]),
    }
    if calibrated:
        confidence = probabilities.max(axis=1)
        found["calibration_error"] = calibration_error(confidence, chosen == target)
    if probabilities.shape[1] == 2 and len(np.unique(target)) == 2:
        found["auc"] = _area(probabilities[:, 1], target == 1)
    return found


def metrics_of_labels(
    probabilities: NDArray[Any], target: NDArray[Any], *, calibrated: bool = True
) -> dict[str, float]:
    """Return figures of labels that a record may have any number of.

    Args:
        probabilities: [n, labels].
        target: 0 and 1, [n, labels].
        calibrated: whether they are probabilities; else only their order and one half count.
    """
    chosen, truth = probabilities > 0.5, target > 0.5
    found = {
        "accuracy": float((chosen == truth).mean()),
        "subset_accuracy": float((chosen == truth).all(axis=1).mean()),
        "f1": _macro_f1((chosen & truth).sum(axis=0), chosen.sum(axis=0), truth.sum(axis=0)),
    }
    if calibrated:
        confidence = np.maximum(probabilities, 1 - probabilities)
        found["calibration_error"] = calibration_error(
            confidence.reshape(-1), (chosen == truth).reshape(-1)
        )
    both = [k for k in range(truth.shape[1]) if 0 < truth[:, k].sum() < len(truth)]
    if both:
        found["auc"] = float(np.mean([_area(probabilities[:, k], truth[:, k]) for k in both]))
    return found


def metrics_of_numbers(predicted: NDArray[Any], target: NDArray[Any]) -> dict[str, float]:
    """Return the mean absolute error, the root of the mean squared one and R²; means over targets.

    Args:
        predicted: [n, targets].
        target: [n, targets].
    """
    apart = predicted - target
    found = {"mae": float(np.abs(apart).mean()), "rmse": float(np.sqrt(np.square(apart).mean()))}
    variance = target.var(axis=0)
    if len(target) > 1 and (variance > 0).all():
        found["r2"] = float((1 - np.square(apart).mean(axis=0) / variance).mean())
    return found


def calibration_error(confidence: NDArray[Any], right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error over 15 bins of equal width (Guo et al. 2017).

    Args:
        confidence: of each prediction, [n], from 0 to 1.
        right: whether it is right, [n].
    """
    places = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    counts, confident, correct = (
        np.bincount(places, weights, minlength=_BINS) for weights in (None, confidence, right)
    )
    return float(np.abs(confident - correct).sum() / counts.sum())


def _area(scores: NDArray[Any], truth: NDArray[np.bool_]) -> float:
    """Return the probability that a score of a true one exceeds another's; ties count half.

    Mann and Whitney's U over the number of pairs; neither is empty.
    """
    above, ordered = scores[truth], np.sort(scores[~truth])
    exceeded = sum(int(np.searchsorted(ordered, above, side).sum()) for side in ("left", "right"))
    return exceeded / (2 * len(above) * len(ordered))


def _macro_f1(right: NDArray[Any], said: NDArray[Any], true: NDArray[Any]) -> float:
    """Return the mean F1 of classes, by how often each was said rightly, was said, and was true."""
    return float((2 * right / np.maximum(said + true, 1)).mean())
