"""What is said of a release's score."""

import math
from typing import Any

import pytest

from app.domain.scores import score_of, warnings_of, why_too_low


def test_a_score_is_that_of_the_metric_or_none() -> None:
    evaluation = {"held_out_loss": 2, "metrics": {"f1": 0.5}}
    assert score_of(evaluation, "f1") == 0.5
    assert score_of(evaluation, "auc") is None
    assert score_of({"held_out_records": 0, "metrics": {}}, None) is None


def _measured(score: float, baseline: float | None = 0.5, **more: Any) -> dict[str, Any]:
    return {
        "held_out_records": 10,
        "metrics": {"accuracy": score},
        "headline": "accuracy",
        "baseline": baseline,
        "higher_is_better": True,
        **more,
    }


@pytest.mark.parametrize(
    ("evaluation", "warned"),
    [
        (_measured(0.75), False),
        (_measured(0.5), True),
        (_measured(0.25), True),
        (_measured(math.nan), True),
        (_measured(0.75, higher_is_better=False), True),
        (_measured(0.25, higher_is_better=False), False),
        (_measured(0.25, higher_is_better=None), False),
        (_measured(0.25, None), False),
        ({"held_out_records": 0}, True),
        ({}, True),
    ],
)
def test_what_is_not_better_than_the_baseline_or_not_measured_is_warned_of(
    evaluation: dict[str, Any], warned: bool
) -> None:
    assert bool(warnings_of(evaluation)) == warned


@pytest.mark.parametrize(
    ("evaluation", "reason"),
    [
        (_measured(0.6), None),
        (_measured(0.75), None),
        (_measured(0.59), "its accuracy of 0.59 on held-out records is below"),
        (_measured(math.nan), "is below"),
        (_measured(0.59, higher_is_better=False), None),
        (_measured(0.61, higher_is_better=False), "is above the policy's minimum_score of 0.6"),
        (_measured(0.9, higher_is_better=None), "its class has no higher_is_better"),
        (_measured(0.9, headline=None), "there is no score"),
        ({"held_out_records": 0}, "there is no score"),
    ],
)
def test_a_minimum_is_met_in_the_metrics_own_direction_or_nothing_is_published(
    evaluation: dict[str, Any], reason: str | None
) -> None:
    found = why_too_low(evaluation, 0.6)
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)
    assert why_too_low(evaluation, None) is None
