"""What a release scored on held-out records, and whether that is anything.

A task names its first metric, the headline, and which way it is better. Beside the score stands the
*baseline*: what one answer for all of the same records would score, the one that suits them best. A
release that is not better has learned nothing that it could show.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

HIGHER_IS_BETTER: Final[Mapping[str, bool]] = {
    "accuracy": True,
    "auc": True,
    "f1": True,
    "r2": True,
    "subset_accuracy": True,
    "calibration_error": False,
    "mae": False,
    "perplexity": False,
    "quantile_loss": False,
    "rmse": False,
}
"""Which way the metrics of built-in tasks are better."""

_METRICS: Final = {
    "auc": "AUC",
    "f1": "F1",
    "mae": "mean absolute error",
    "r2": "R²",
    "rmse": "root mean squared error",
}
_NOT_PLAIN: Final = re.compile(r"[^\w .%²-]")


def metric_in_words(name: str) -> str:
    """Return a metric's name in words; an operator's own may be any text."""
    return _METRICS.get(name, _NOT_PLAIN.sub(" ", name.replace("_", " ")))


def figures(evaluation: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return an evaluation's metrics by their names in words, the headline first."""
    metrics, headline = evaluation.get("metrics") or {}, evaluation.get("headline")
    order = sorted(metrics, key=lambda name: (name != headline, name))
    return [(metric_in_words(name), f"{metrics[name]:.4g}") for name in order]


def score_of(evaluation: Mapping[str, Any], metric: str | None) -> float | None:
    """Return what an evaluation says of a metric; None if nothing."""
    found = (evaluation.get("metrics") or {}).get(metric)
    return None if found is None else float(found)


def lost(*, before: float, after: float, higher_is_better: bool) -> float:
    """Return how much worse a score is than another one; negative where it is better."""
    return before - after if higher_is_better else after - before


def warnings_of(evaluation: Mapping[str, Any]) -> list[str]:
    """Return what whoever uses a release should know of its evaluation."""
    if evaluation.get("not_measured"):
        return []
    if not evaluation.get("held_out_records"):
        return ["no record is held out, so nobody knows what it has learned"]
    headline, baseline = evaluation.get("headline"), evaluation.get("baseline")
    score, higher = score_of(evaluation, headline), evaluation.get("higher_is_better")
    if score is None or baseline is None or higher is None:
        return []
    if lost(before=baseline, after=score, higher_is_better=higher) < 0:  # not so of NaN
        return []
    return [
        f"its {metric_in_words(str(headline))} of {score:.4g} on held-out records is not better "
        f"than the baseline: one answer for all of them has {baseline:.4g}"
    ]


def why_too_low(evaluation: Mapping[str, Any], minimum: float | None) -> str | None:
    """Return why nothing with this score is published under a policy's minimum, or None."""
    if minimum is None:
        return None
    headline, higher = evaluation.get("headline"), evaluation.get("higher_is_better")
    score = score_of(evaluation, headline)
    if score is None or higher is None:
        missing = "there is no score" if score is None else "its class has no higher_is_better"
        return f"minimum_score is {minimum:g}, and {missing}: nothing can be compared with it"
    if lost(before=minimum, after=score, higher_is_better=higher) <= 0:  # not so of NaN
        return None
    return (
        f"its {metric_in_words(str(headline))} of {score:.4g} on held-out records is "
        f"{'below' if higher else 'above'} the policy's minimum_score of {minimum:g}"
    )
