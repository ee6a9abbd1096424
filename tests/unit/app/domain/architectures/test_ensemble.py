"""When the average of an ensemble's weights may take its place."""

import math

import pytest

from app.domain.architectures.ensemble import is_offered
from app.domain.scores import LOSS


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
