"""Accuracy at more noise than a release has, from what was measured."""

import pytest

from app.api.plans import score_at

EVALUATION = {
    "metrics": {"accuracy": 0.9},
    "headline": "accuracy",
    "noise_curve": [
        {"noise_std": 0.1, "score": 0.9},
        {"noise_std": 0.2, "score": 0.8},
        {"noise_std": 0.4, "score": 0.4},
    ],
}


@pytest.mark.parametrize(
    ("noise_std", "accuracy"),
    [(0.1, 0.9), (0.2, 0.8), (0.4, 0.4), (0.2 * 2**0.5, 0.6), (0.1 * 2**0.5, 0.85)],
)
def test_between_what_was_measured(noise_std: float, accuracy: float) -> None:
    assert score_at(EVALUATION, noise_std=noise_std) == pytest.approx(accuracy)


@pytest.mark.parametrize("noise_std", [0.0, 0.05, 0.0999, 0.401, 10.0])
def test_nothing_is_said_of_less_noise_or_of_what_was_not_measured(noise_std: float) -> None:
    assert score_at(EVALUATION, noise_std=noise_std) is None


@pytest.mark.parametrize("evaluation", [{}, {"held_out_records": 0}, {"noise_curve": None}])
def test_without_a_curve_there_is_nothing(evaluation: dict) -> None:
    assert score_at(evaluation, noise_std=0.1) is None
