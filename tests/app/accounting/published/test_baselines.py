import math

import pytest

from app.accounting.published import (
    chien_theorem_p_2,
    chourasia_theorem_5_1,
    neel_theorem_9,
    neel_theorem_28,
)
from app.domain.errors import ParameterError

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
    found = neel_theorem_9.calibrate(epsilon=0.5, steps=10, **NEEL)
    log_term = math.log(1e5)
    gap = math.sqrt(log_term + 0.5) - math.sqrt(log_term)
    assert found == pytest.approx(4 * math.sqrt(2) * reach(10) / gap, rel=1e-10)
    again = neel_theorem_9.account(noise_std=found, steps=10, **NEEL)
    assert again.at_epsilon == pytest.approx(0.5, rel=1e-10)


def test_theorem_28_in_closed_form():
    given = {**NEEL, "dimension": 50, "request": 3}
    # What the theorem spends on the noise before its I begins.
    spent = math.log(math.log(4 * 50 * 3 / 1e-5)) / -math.log(GAMMA)
    steps = 60
    effective = math.floor(steps - spent)
    found = neel_theorem_28.calibrate(epsilon=0.5, steps=steps, **given)
    log_term = 2 * math.log(2e5)
    gap = math.sqrt(log_term + 1.5) - math.sqrt(log_term + 1.0)
    assert found == pytest.approx(8 * reach(effective) / gap, rel=1e-8)
    again = neel_theorem_28.account(noise_std=found, steps=steps, **given)
    assert again.at_epsilon == pytest.approx(0.5, rel=1e-8)


def test_theorem_28_also_needs_its_steps():
    given = {**NEEL, "dimension": 10**6}
    steps = 45
    spent = math.log(math.log(4 * 10**6 / 1e-5)) / -math.log(GAMMA)
    effective = math.floor(steps - spent)
    gap = math.sqrt(2e6) * GAMMA**effective / (1 - GAMMA)
    least = gap * gap + 2 * gap * math.sqrt(2 * math.log(2e5))
    found = neel_theorem_28.account(noise_std=100.0, steps=steps, **given)
    assert found.at_epsilon == pytest.approx(least, rel=1e-9)
    with pytest.raises(ParameterError) as caught:
        neel_theorem_28.calibrate(epsilon=least * 0.99, steps=steps, **given)
    assert caught.value.name == "steps"
    with pytest.raises(ParameterError) as caught:
        neel_theorem_28.account(noise_std=1.0, steps=3, **given)
    assert caught.value.name == "steps"


def test_delete_to_descent_refuses_epsilon_above_its_range():
    with pytest.raises(ParameterError) as caught:
        neel_theorem_9.calibrate(epsilon=12.0, steps=10, **NEEL)
    assert caught.value.name == "epsilon"
    with pytest.raises(ParameterError) as caught:
        neel_theorem_28.calibrate(epsilon=12.0, steps=100, dimension=5, **NEEL)
    assert caught.value.name == "epsilon"


def test_the_secret_state_is_on_the_certificate():
    statements = [a.statement for a in neel_theorem_9.TERMS.assumptions]
    assert any("noise-free weights that are kept" in statement for statement in statements)


def test_chien_theorem_p_2_in_closed_form():
    found = chien_theorem_p_2.account(noise_scale=0.1, steps=40, forgotten=3, **FULL)
    order = 5.0
    start = 4 * order * 9 / (0.05 * 0.01 * 1e6)
    assert found.curve(order) == pytest.approx(start * math.exp(-0.05 * 40 / order), rel=1e-10)


def test_theorem_5_1_in_closed_form():
    found = chourasia_theorem_5_1.account(noise_scale=0.1, unlearning_steps=40, **FULL)
    start = 4 * 3.0 / (0.05 * 0.01 * 1e6)
    assert found.curve(3.0) == pytest.approx(start * math.exp(-1.0), rel=1e-10)
    group = chourasia_theorem_5_1.account(noise_scale=0.1, unlearning_steps=40, forgotten=2, **FULL)
    assert group.curve(3.0) == pytest.approx(4 * found.curve(3.0), rel=1e-10)


def test_theorem_5_1_for_present_records():
    found = chourasia_theorem_5_1.account_present(noise_scale=0.1, steps=40, **FULL)
    start = 4 * 3.0 / (0.05 * 0.01 * 1e6)
    assert found.curve(3.0) == pytest.approx(start * (1 - math.exp(-1.0)), rel=1e-10)


def test_theorem_5_1_step_count():
    given = {"order": 3.0, "divergence": 1e-4, "noise_scale": 0.1}
    steps = chourasia_theorem_5_1.steps_needed(**given, **FULL)
    start = 4 * 3.0 / (0.05 * 0.01 * 1e6)
    assert steps == math.ceil(2 / 0.05 * math.log(start / 1e-4))
    found = chourasia_theorem_5_1.account(noise_scale=0.1, unlearning_steps=steps, **FULL)
    assert found.curve(3.0) <= 1e-4
    # With sigma set for eps_dp and eta = 1/(2(lambda + beta)): K = 4 kappa log(eps_dp/eps_dd).
    rate, kappa = 1 / (2 * 0.3), 0.3 / 0.05
    sigma = math.sqrt(4 * 3.0 / (0.05 * 0.02 * 1e6))
    special = chourasia_theorem_5_1.steps_needed(
        **{**given, "noise_scale": sigma}, **{**FULL, "learning_rate": rate}
    )
    assert special == math.ceil(4 * kappa * math.log(0.02 / 1e-4))


def test_each_calibration_meets_its_target_and_is_smallest():
    for module, given in (
        (chien_theorem_p_2, {"steps": 40}),
        (chourasia_theorem_5_1, {"unlearning_steps": 40}),
    ):
        noise_scale = module.calibrate(epsilon=1.0, delta=1e-5, **FULL, **given)
        found = module.account(noise_scale=noise_scale, **FULL, **given)
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
    for module, steps in (
        (chien_theorem_p_2, {"steps": 4}),
        (chourasia_theorem_5_1, {"unlearning_steps": 4}),
    ):
        given = {**FULL, "noise_scale": 0.1, "forgotten": 1, **steps, name: bad}
        with pytest.raises(ParameterError) as caught:
            module.account(**given)
        assert caught.value.name == name


def test_theorem_5_1_needs_the_smaller_step_size():
    given = {**FULL, "learning_rate": 2.0}
    with pytest.raises(ParameterError) as caught:
        chourasia_theorem_5_1.account(noise_scale=0.1, unlearning_steps=4, **given)
    assert caught.value.name == "learning_rate"
    chien_theorem_p_2.account(noise_scale=0.1, steps=4, **given)


@pytest.mark.parametrize(
    ("name", "bad"),
    [("weight_decay", 0.0), ("smoothness", -1.0), ("records", 0), ("noise_std", 0.0), ("steps", 0)],
)
def test_delete_to_descent_refuses_parameters_outside_their_range(name, bad):
    given = {**NEEL, "noise_std": 0.1, "steps": 10, name: bad}
    with pytest.raises(ParameterError) as caught:
        neel_theorem_9.account(**given)
    assert caught.value.name == name
