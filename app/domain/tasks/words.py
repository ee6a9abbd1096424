"""Tasks and their figures in words, for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.scores import metric_in_words
from app.domain.tasks.classification import ClassificationSpec
from app.domain.tasks.language_model import LanguageModelSpec
from app.domain.tasks.multi_label import MultiLabelSpec
from app.domain.tasks.regression import HUBER, QUANTILE, RegressionSpec
from app.domain.tasks.spec import TaskSpec


def task_in_words(spec: TaskSpec) -> str:
    """Return what a task predicts of a record; no name of a column is in it."""
    match spec:
        case ClassificationSpec():
            return f"classification: one of {spec.classes} classes"
        case MultiLabelSpec(labels=labels):
            return f"multi-label classification: any of {_counted(len(labels), 'label')}"
        case RegressionSpec():
            return f"regression: {_counted(len(spec.targets), 'number')}, {_loss(spec)}"
        case LanguageModelSpec():
            return f"language model: the next of {spec.vocabulary} tokens"
    return "a task of the operator's own"


def figures(evaluation: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return an evaluation's metrics by their names in words, the headline first."""
    metrics, headline = evaluation.get("metrics") or {}, evaluation.get("headline")
    order = sorted(metrics, key=lambda name: (name != headline, name))
    return [(metric_in_words(name), f"{metrics[name]:.4g}") for name in order]


def _loss(spec: RegressionSpec) -> str:
    if spec.loss == HUBER:
        return f"Huber's loss with threshold {spec.threshold:g}"
    if spec.loss == QUANTILE:
        return f"the {spec.quantile:g} quantile"
    return "squared loss"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
