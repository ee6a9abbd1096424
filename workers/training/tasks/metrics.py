"""Figures of predictions; those that records do not define are left out."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BINS: Final = 15


def of_classes(
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


def of_labels(
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


def of_numbers(predicted: NDArray[Any], target: NDArray[Any]) -> dict[str, float]:
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
