"""When the average of an ensemble's weights may take its place."""

import math

import pytest

from app.domain.architectures.ensemble import LOSS, is_offered, metric_compared, score_of


@pytest.mark.parametrize(
    ("metric", "ensemble", "merged", "offered"),
    [
        ("accuracy", 0.5, 0.25, True),
        ("accuracy", 0.5, 0.125, False),
        ("accuracy", 0.5, 1.0, True),
        ("mae", 1.0, 1.25, True),
        ("mae", 1.0, 1.5, False),
        ("mae", 1.0, 0.0, True),
        ("perplexity", 1.0, 9.0, False),
        (LOSS, 1.0, 1.25, True),
        (LOSS, 1.0, 1.5, False),
    ],
)
def test_it_may_be_worse_by_the_margin_in_the_metrics_own_direction(
    metric: str, ensemble: float, merged: float, offered: bool
) -> None:
    assert is_offered(ensemble=ensemble, merged=merged, margin=0.25, metric=metric) == offered


def test_what_is_no_number_is_never_offered() -> None:
    for metric in ("accuracy", "mae"):
        assert not is_offered(ensemble=0.5, merged=math.nan, margin=1e9, metric=metric)


def test_a_metric_of_unknown_direction_leaves_the_loss_to_decide() -> None:
    assert metric_compared("f1") == "f1"
    assert metric_compared("rent_within_a_tenth") == LOSS
    assert metric_compared(None) == LOSS
    evaluation = {"held_out_loss": 2, "metrics": {"f1": 0.5}}
    assert score_of(evaluation, LOSS) == 2.0
    assert score_of(evaluation, "f1") == 0.5
    assert score_of(evaluation, "auc") is None
    assert score_of({"held_out_records": 0, "metrics": {}}, LOSS) is None
