"""Policies refuse numbers that could not be kept."""

import pytest

from app.domain.errors import ExpungeError
from app.domain.policy import Policy
from app.domain.states import FirstRelease, Serving


@pytest.mark.parametrize(
    "fields",
    [
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"delta": 0.0},
        {"delta": 1.0},
        {"window_s": -1.0},
        {"deadline_s": 0.0},
        {"deadline_s": 1e300},
        {"budget_epochs": 0.0},
        {"budget_epochs": 1e308},
        {"window_s": 61.0, "deadline_s": 60.0},
        {"parameters": {"steps": True}},
        {"parameters": {"noise_std": [1.0, float("inf")]}},
        {"parameters": {"noise_std": []}},
    ],
)
def test_out_of_range(fields: dict) -> None:
    with pytest.raises(ExpungeError):
        Policy(**fields)


def test_json_keeps_every_field() -> None:
    policy = Policy(
        epsilon=2.0,
        parameters={"steps": 3, "noise_std": [3.0, 2.0, 1.0]},
        first_release=FirstRelease.NONE,
        serving=Serving.WITHDRAW_ON_REQUEST,
        budget_epochs=2.5,
    )

    assert Policy.from_json(policy.to_json()) == policy
