"""What would keep a caller waiting for minutes is declined, and all that is usual is not."""

from dataclasses import replace

import pytest

from app.accounting import dp_sgd
from app.domain.errors import ParameterError
from app.domain.policy import Policy
from app.planning.mechanisms.dp_sgd import (
    MOST_STEPS,
    refuse_slow_accounting,
    refuse_slow_calibration,
)
from app.planning.planner import quote_all
from app.planning.shape import DpTrainingShape, ModelShape

POLICY = Policy(mechanism="dp_sgd", epsilon=8.0)
TRAINED = ModelShape(
    retained=1000,
    batch_size=10,
    recipe_epochs=2.0,
    earlier_releases=1,
    dp_training=DpTrainingShape(noise_multiplier=1.0, sampling_rate=0.01, steps=200, forgotten=1),
)


def _reason(shape: ModelShape, policy: Policy = POLICY) -> str:
    return quote_all(policy=policy, shape=shape).reason("dp_sgd") or ""


def _trained(**changes: float) -> ModelShape:
    return replace(TRAINED, dp_training=replace(TRAINED.dp_training, **changes))


@pytest.fixture
def _no_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where work is begun that cannot be ended in time."""

    def compose(*_: object) -> None:
        pytest.fail("a composition was begun")

    monkeypatch.setattr(dp_sgd, "composed", compose)


@pytest.mark.usefixtures("_no_composition")
@pytest.mark.parametrize("sampling_rate", [1e-6, 0.01, 1.0])
def test_two_billion_steps_are_declined(sampling_rate: float) -> None:
    assert "steps" in _reason(_trained(steps=2_000_000_000, sampling_rate=sampling_rate))


@pytest.mark.usefixtures("_no_composition")
def test_a_recipe_of_two_billion_steps_is_declined() -> None:
    shape = ModelShape(retained=20_000, batch_size=1, recipe_epochs=1e5)
    assert "steps" in _reason(shape)
    fixed = replace(POLICY, parameters={"noise_multiplier": 100.0})
    assert "steps" in _reason(shape, fixed)


@pytest.mark.usefixtures("_no_composition")
@pytest.mark.parametrize("parameters", [{}, {"noise_multiplier": 1.0}, {"capacity": 1}])
@pytest.mark.parametrize("records", [10**8, 10**9])
def test_so_many_records_one_at_a_time_are_declined(parameters: dict, records: int) -> None:
    """The composition of 10^9 took gigabytes, and told nothing."""
    shape = ModelShape(retained=records, batch_size=1, recipe_epochs=MOST_STEPS / records)
    reason = _reason(shape, replace(POLICY, epsilon=1e-3, parameters=parameters))
    assert "train in fewer steps, with larger batches" in reason


@pytest.mark.usefixtures("_no_composition")
@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 0.1, "forgotten": 100},
        {"noise_multiplier": 0.1, "sampling_rate": 0.5, "steps": 1_000_000},
        {"noise_multiplier": 0.5, "sampling_rate": 0.5, "forgotten": 200},
    ],
)
def test_little_noise_for_many_records_or_steps_is_declined(changes: dict[str, float]) -> None:
    assert "takes too long" in _reason(_trained(**changes))


@pytest.mark.usefixtures("_no_composition")
def test_a_search_for_little_noise_for_a_large_group_is_declined() -> None:
    loose = replace(POLICY, epsilon=1e6, parameters={"capacity": 100})
    shape = ModelShape(retained=1000, batch_size=100, recipe_epochs=2.0)
    assert "takes too long" in _reason(shape, loose)


def test_without_sampling_the_least_noise_for_the_most_steps_is_a_formula() -> None:
    most = _trained(noise_multiplier=0.1, sampling_rate=1.0, steps=MOST_STEPS)
    assert "budget is spent" in _reason(most)


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 0.1, "forgotten": 10},
        {"noise_multiplier": 0.6, "sampling_rate": 1e-4, "steps": 10, "forgotten": 10},
        {"noise_multiplier": 0.5, "sampling_rate": 0.001, "steps": MOST_STEPS, "forgotten": 10},
    ],
)
def test_what_took_long_in_narrow_cells_is_answered_in_wide_ones(
    changes: dict[str, float],
) -> None:
    shape = _trained(**changes)
    quotes = quote_all(policy=POLICY, shape=shape)
    assert "takes too long" not in (quotes.reason("dp_sgd") or "")
    generous = replace(POLICY, epsilon=1e6)
    quote = quote_all(policy=generous, shape=shape).offer("dp_sgd")
    assert quote is not None
    assert 0 < quote.guarantee.epsilon(delta=1e-5) < 1e5


@pytest.mark.parametrize("batch_size", [128, 1024])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("epochs", [5, 50])
def test_usual_trainings_are_not_declined(batch_size: int, epsilon: float, epochs: int) -> None:
    refuse_slow_calibration(
        epsilon=epsilon,
        delta=1e-5,
        sampling_rate=batch_size / 50_000,
        steps=epochs * 50_000 // batch_size,
        group_size=10,
    )


def test_parameters_out_of_range_are_told_as_the_accountant_does() -> None:
    usual = {"noise_multiplier": 1.0, "sampling_rate": 0.01, "steps": 10, "group_size": 1}
    for name, bad in (
        ("noise_multiplier", -1.0),
        ("sampling_rate", 2.0),
        ("steps", 0),
        ("group_size", dp_sgd.LARGEST_GROUP + 1),
    ):
        with pytest.raises(ParameterError, match=name):
            refuse_slow_accounting(**usual | {name: bad})
    refuse_slow_accounting(**usual | {"steps": MOST_STEPS})
