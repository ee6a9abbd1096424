import math

import pytest

from app.accounting.published import full_batch, neel
from app.domain.errors import CalibrationError, ParameterError
from benchmarks.calibration import calibrate

NEEL = {
    "delta": 1e-5,
    "weight_decay": 0.05,
    "smoothness": 0.25,
    "lipschitz": 1.0,
    "records": 1000,
}
GAMMA = 0.25 / 0.35
FULL = {
    "learning_rate": 1.0,
    "weight_decay": 0.05,
    "smoothness": 0.25,
    "lipschitz": 1.0,
    "records": 1000,
}


def reach(steps):
    return GAMMA**steps / (0.05 * 1000 * (1 - GAMMA**steps))


def test_theorem_9_in_closed_form():
    found = calibrate(neel.theorem_9, epsilon=0.5, steps=10, **NEEL)
    log_term = math.log(1e5)
    gap = math.sqrt(log_term + 0.5) - math.sqrt(log_term)
    assert found == pytest.approx(4 * math.sqrt(2) * reach(10) / gap, rel=1e-10)
    again = neel.theorem_9(noise_std=found, steps=10, **NEEL)
    assert again.at_epsilon == pytest.approx(0.5, rel=1e-10)


def test_theorem_28_in_closed_form():
    given = {**NEEL, "dimension": 50, "request": 3}
    # What the theorem spends on the noise before its I begins.
    spent = math.log(math.log(4 * 50 * 3 / 1e-5)) / -math.log(GAMMA)
    steps = 60
    effective = math.floor(steps - spent)
    found = calibrate(neel.theorem_28, epsilon=0.5, steps=steps, **given)
    log_term = 2 * math.log(2e5)
    gap = math.sqrt(log_term + 1.5) - math.sqrt(log_term + 1.0)
    assert found == pytest.approx(8 * reach(effective) / gap, rel=1e-8)
    again = neel.theorem_28(noise_std=found, steps=steps, **given)
    assert again.at_epsilon == pytest.approx(0.5, rel=1e-8)


def test_theorem_28_also_needs_its_steps():
    given = {**NEEL, "dimension": 10**6}
    steps = 45
    spent = math.log(math.log(4 * 10**6 / 1e-5)) / -math.log(GAMMA)
    effective = math.floor(steps - spent)
    gap = math.sqrt(2e6) * GAMMA**effective / (1 - GAMMA)
    least = gap * gap + 2 * gap * math.sqrt(2 * math.log(2e5))
    found = neel.theorem_28(noise_std=100.0, steps=steps, **given)
    assert found.at_epsilon == pytest.approx(least, rel=1e-9)
    with pytest.raises(CalibrationError):
        calibrate(neel.theorem_28, epsilon=least * 0.99, steps=steps, **given)
    with pytest.raises(ParameterError) as caught:
        neel.theorem_28(noise_std=1.0, steps=3, **given)
    assert caught.value.name == "steps"


def test_delete_to_descent_refuses_epsilon_above_its_range():
    with pytest.raises(ParameterError) as caught:
        calibrate(neel.theorem_9, epsilon=12.0, steps=10, **NEEL)
    assert caught.value.name == "epsilon"
    with pytest.raises(ParameterError) as caught:
        calibrate(neel.theorem_28, epsilon=12.0, steps=100, dimension=5, **NEEL)
    assert caught.value.name == "epsilon"


def test_the_secret_state_is_on_the_certificate():
    statements = [a.statement for a in neel.Theorem9.TERMS.assumptions]
    assert any("noise-free weights that are kept" in statement for statement in statements)


def test_chien_theorem_p_2_in_closed_form():
    found = full_batch.chien_theorem_p_2(noise_scale=0.1, steps=40, forgotten=3, **FULL)
    order = 5.0
    start = 4 * order * 9 / (0.05 * 0.01 * 1e6)
    assert found.curve(order) == pytest.approx(start * math.exp(-0.05 * 40 / order), rel=1e-10)


def test_theorem_5_1_in_closed_form():
    found = full_batch.chourasia_theorem_5_1(noise_scale=0.1, unlearning_steps=40, **FULL)
    start = 4 * 3.0 / (0.05 * 0.01 * 1e6)
    assert found.curve(3.0) == pytest.approx(start * math.exp(-1.0), rel=1e-10)
    group = full_batch.chourasia_theorem_5_1(
        noise_scale=0.1, unlearning_steps=40, forgotten=2, **FULL
    )
    assert group.curve(3.0) == pytest.approx(4 * found.curve(3.0), rel=1e-10)


def test_each_calibration_meets_its_target_and_is_smallest():
    for account, given in (
        (full_batch.chien_theorem_p_2, {"steps": 40}),
        (full_batch.chourasia_theorem_5_1, {"unlearning_steps": 40}),
    ):
        noise_scale = calibrate(account, epsilon=1.0, delta=1e-5, **FULL, **given)
        found = account(noise_scale=noise_scale, **FULL, **given)
        assert found.epsilon(delta=1e-5) == pytest.approx(1.0, rel=1e-7)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate", 4.0),
        ("weight_decay", 0.0),
        ("lipschitz", math.nan),
        ("records", 0),
        ("noise_scale", 0.0),
        ("forgotten", 0),
    ],
)
def test_refuses_parameters_outside_their_range(name, bad):
    for account, steps in (
        (full_batch.chien_theorem_p_2, {"steps": 4}),
        (full_batch.chourasia_theorem_5_1, {"unlearning_steps": 4}),
    ):
        given = {**FULL, "noise_scale": 0.1, "forgotten": 1, **steps, name: bad}
        with pytest.raises(ParameterError) as caught:
            account(**given)
        assert caught.value.name == name


def test_theorem_5_1_needs_the_smaller_step_size():
    given = {**FULL, "learning_rate": 2.0}
    with pytest.raises(ParameterError) as caught:
        full_batch.chourasia_theorem_5_1(noise_scale=0.1, unlearning_steps=4, **given)
    assert caught.value.name == "learning_rate"
    full_batch.chien_theorem_p_2(noise_scale=0.1, steps=4, **given)


@pytest.mark.parametrize(
    ("name", "bad"),
    [("weight_decay", 0.0), ("smoothness", -1.0), ("records", 0), ("noise_std", 0.0), ("steps", 0)],
)
def test_delete_to_descent_refuses_parameters_outside_their_range(name, bad):
    given = {**NEEL, "noise_std": 0.1, "steps": 10, name: bad}
    with pytest.raises(ParameterError) as caught:
        neel.theorem_9(**given)
    assert caught.value.name == name
