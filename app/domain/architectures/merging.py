"""Whether one network with the average of an ensemble's weights may take the ensemble's place.

The average is a function of the published file alone, so it needs no file and no certificate of its
own. Held-out records decide whether it is offered, anew at each release.
"""

from collections.abc import Mapping
from typing import Any, Final

LOSS: Final = "held_out_loss"
_HIGHER_IS_BETTER: Final[Mapping[str, bool]] = {
    "accuracy": True,
    "auc": True,
    "f1": True,
    "r2": True,
    "subset_accuracy": True,
    "calibration_error": False,
    "mae": False,
    "perplexity": False,
    "rmse": False,
    LOSS: False,
}


def metric_compared(headline: str | None) -> str:
    """Return the headline metric if it is known which way is better; otherwise the loss."""
    return headline if headline is not None and headline in _HIGHER_IS_BETTER else LOSS


def score_of(evaluation: Mapping[str, Any], metric: str) -> float | None:
    """Return what an evaluation says of a metric of ``metric_compared``; None if nothing."""
    found = evaluation.get(LOSS) if metric == LOSS else evaluation["metrics"].get(metric)
    return None if found is None else float(found)


def is_offered(*, ensemble: float, merged: float, margin: float, metric: str) -> bool:
    """Return whether the average scores at most ``margin`` worse than the ensemble.

    Both scores are of ``metric``, on the held-out records; what is not a number is never offered.
    """
    lost = ensemble - merged if _HIGHER_IS_BETTER[metric] else merged - ensemble
    return lost <= margin
