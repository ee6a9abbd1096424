"""What of a run's progress is kept."""

import json
import math
from collections.abc import Mapping
from typing import Any

from app.ledger.runs import MOST_POINTS, with_report


def test_epsilon_is_kept_of_noisy_steps_and_the_loss_of_others() -> None:
    points: list[Mapping[str, Any]] = []
    for progress in (
        {"phase": "loading", "step": None, "epsilon": None, "loss": None},
        {"phase": "training", "step": 3, "epsilon": None, "loss": None},
        {"phase": "unlearning", "step": 1, "epsilon": 8.0, "loss": 0.5},
        {"phase": "unlearning", "step": 2, "epsilon": math.inf, "loss": None},
        {"phase": "fine_tuning", "step": 1, "epsilon": 8.0, "loss": 0.25},
        {"phase": "fine_tuning", "step": 2, "epsilon": 8.0, "loss": math.nan},
        {"phase": "evaluating", "step": 5, "epsilon": 8.0},
    ):
        points = with_report(points, progress)

    assert points == [
        {"phase": "unlearning", "step": 1, "epsilon": 8.0, "loss": None},
        {"phase": "fine_tuning", "step": 1, "epsilon": None, "loss": 0.25},
    ]
    json.dumps(points, allow_nan=False)


def test_long_runs_are_thinned_out_and_keep_their_newest_point() -> None:
    points: list[Mapping[str, Any]] = []
    for step in range(1, 5001):
        points = with_report(points, {"phase": "unlearning", "step": step, "epsilon": 1.0})
        assert len(points) <= MOST_POINTS
        assert points[-1]["step"] == step
    steps = [point["step"] for point in points]
    assert steps == sorted(set(steps))
    assert len(steps) > MOST_POINTS // 3
    assert steps[0] < 100
