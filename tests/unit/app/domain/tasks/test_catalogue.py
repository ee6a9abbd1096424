"""Tasks and figures are said in words that fit them."""

import pytest

from app.domain.scores import figures
from app.domain.tasks import catalogue
from app.domain.tasks.catalogue import task_in_words
from tests.support.own_tasks import OWN
from tests.support.shops import TASKS


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (TASKS["classification"], "classification: one of 2 classes"),
        (TASKS["multi_label"], "multi-label classification: any of 2 labels"),
        (TASKS["squared"], "regression: 1 number, squared loss"),
        (TASKS["huber"], "regression: 1 number, Huber's loss with threshold 1"),
        (TASKS["quantile"], "regression: 1 number, the 0.9 quantile"),
        (TASKS["language_model"], "language model: the next of 257 tokens"),
        (OWN, "a task of the operator's own"),
    ],
)
def test_each_task_says_what_it_predicts(task: dict, words: str) -> None:
    assert task_in_words(catalogue.from_json(task)) == words


def test_the_headline_comes_first_and_names_are_plain() -> None:
    metrics = {"accuracy": 0.98765, "f1": 0.5, "auc": 1.0, "my|*metric*": 1234.567}
    assert figures({"metrics": metrics, "headline": "f1"}) == [
        ("F1", "0.5"),
        ("accuracy", "0.9877"),
        ("AUC", "1"),
        ("my  metric ", "1235"),
    ]
    assert figures({"held_out_records": 0}) == []
