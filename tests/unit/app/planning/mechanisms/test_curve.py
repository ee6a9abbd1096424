"""The curve that a plan expects a run to follow."""

from dataclasses import replace

import pytest

from app.accounting import gradient_clipping
from app.domain.plan import Plan
from app.planning.mechanisms.catalogue import CURVE_POINTS, epsilon_by_step

PARAMETERS = {
    "initial_clip": 1.0,
    "gradient_clip": 0.05,
    "learning_rate": 0.1,
    "weight_decay": 0.5,
    "noise_std": 0.4,
    "steps": 300,
}
PLAN = Plan(
    mechanism=gradient_clipping.NAME,
    parameters=PARAMETERS,
    epsilon=1.0,
    delta=1e-5,
    budget_epochs=1.0,
    predicted={},
)


@pytest.fixture(scope="module")
def curve() -> list[tuple[int, float]]:
    return epsilon_by_step(PLAN)


def test_each_point_is_what_so_many_steps_are_worth(curve: list[tuple[int, float]]) -> None:

    assert curve[-1][0] == 300
    assert len(curve) <= CURVE_POINTS
    for step, epsilon in (*curve[:3], *curve[3::9], curve[-1]):
        odometer = gradient_clipping.Odometer(initial_clip=1.0)
        size = gradient_clipping.step_size(gradient_clip=0.05, learning_rate=0.1, weight_decay=0.5)
        for _ in range(step):
            odometer.step(size, 0.4)
        assert epsilon == pytest.approx(odometer.guarantee().epsilon(delta=1e-5), rel=1e-9)


def test_schedules_are_cut_to_the_steps(curve: list[tuple[int, float]]) -> None:
    varying = epsilon_by_step(replace(PLAN, parameters=PARAMETERS | {"noise_std": (0.4,) * 300}))

    assert [step for step, _ in varying] == [step for step, _ in curve]
    for (_, one), (_, other) in zip(varying, curve, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def test_few_steps_are_all_shown() -> None:
    steps = [
        step for step, _ in epsilon_by_step(replace(PLAN, parameters=PARAMETERS | {"steps": 4}))
    ]

    assert steps == [1, 2, 3, 4]


def test_a_mechanism_without_steps_has_no_curve() -> None:
    assert epsilon_by_step(replace(PLAN, mechanism="retraining", parameters={})) == []
    assert epsilon_by_step(replace(PLAN, mechanism="model_clipping")) == []
