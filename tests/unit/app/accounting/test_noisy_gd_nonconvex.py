import math

import pytest

from app.accounting import noisy_gd_nonconvex
from app.accounting.terms import Direction, Support
from app.domain.errors import CalibrationError, ParameterError

BASE = {
    "learning_rate": 1e-6,
    "weight_decay": 1.0,
    "smoothness": 1.0,
    "loss_bound": 0.5,
    "dimension": 10,
    "records": 1000,
    "request_size": 1,
}
GOOD = {
    **BASE,
    "noise_std": math.sqrt(2e-6) * 2.0,
    "training_steps": 2 * 10**7,
    "unlearning_steps": 10**7,
}


def parts(order):
    log_bound = 4 * 0.5 / 4.0
    bound = math.exp(log_bound)
    pace = 1e-6 / (2 * bound)
    left = math.exp(-pace * 10**7)
    return (
        64 * 10 * order * bound * 4.0 * 1e-6,
        order * log_bound * math.exp(-pace * 2 * 10**7),
        2 * order * left * 1e-3 * log_bound / (1 - 2 * order * left),
    )


def test_curve_is_the_largest_of_the_three_conditions():
    guarantee = noisy_gd_nonconvex.account(**GOOD).inner
    for order in (1.5, 4.0, 7.0):
        assert guarantee.curve(order) == pytest.approx(max(parts(order)), rel=1e-10)
    assert guarantee.curve(40.0) == math.inf
    longer = noisy_gd_nonconvex.account(**{**GOOD, "training_steps": 10**9}).inner
    assert longer.curve(7.0) == pytest.approx(max(parts(7.0)[0], parts(7.0)[2]), rel=1e-10)


def test_request_condition_alone():
    many = {**GOOD, "request_size": 1000, "training_steps": 10**10}
    order, log_bound = 4.0, 0.5
    left = math.exp(-1e-6 * 10**7 / (2 * math.exp(log_bound)))
    expected = 2 * order * left * log_bound / (1 - 2 * order * left)
    assert noisy_gd_nonconvex.account(**many).inner.curve(order) == pytest.approx(
        expected, rel=1e-10
    )


def test_step_size_bound_limits_the_order():
    guarantee = noisy_gd_nonconvex.account(**GOOD).inner
    highest = math.sqrt(1 / (64 * math.exp(0.5) * 1e-6 * 4.0))
    assert guarantee.highest_order == pytest.approx(highest, rel=1e-12)


def test_the_terms_are_one_way_and_asserted():
    terms = noisy_gd_nonconvex.account(**GOOD).terms
    assert terms.direction is Direction.ONE_WAY
    assert "Gibbs" in terms.reference
    asserted = [a.statement for a in terms.assumptions if a.support is Support.ASSERTED]
    assert len(asserted) == 2


def test_step_counts_are_enough_and_smallest():
    setting = {**BASE, "noise_std": GOOD["noise_std"]}
    training, request = noisy_gd_nonconvex.steps_needed(order=6.0, divergence=0.05, **setting)

    def at(training_steps, unlearning_steps):
        guarantee = noisy_gd_nonconvex.account(
            **setting, training_steps=training_steps, unlearning_steps=unlearning_steps
        )
        return guarantee.inner.curve(6.0)

    assert at(training, request) <= 0.05 * (1 + 1e-9)
    assert at(math.floor(training * 0.99), request) > 0.05
    assert at(training, math.floor(request * 0.9)) > 0.05


def test_step_counts_follow_the_printed_formula():
    setting = {**BASE, "noise_std": GOOD["noise_std"]}
    training, request = noisy_gd_nonconvex.steps_needed(order=6.0, divergence=0.05, **setting)
    pace, log_bound = 2 * math.exp(0.5) / 1e-6, 0.5
    exact = pace * math.log(6.0 * log_bound / 0.05)
    printed = exact - pace * math.log(log_bound / (2 * (0.05 + 1e-3 * log_bound)))
    assert training == math.ceil(exact)
    assert request == pytest.approx(printed, rel=1e-12, abs=1)


def test_networks_are_declined_by_the_count():
    with pytest.raises(CalibrationError):
        noisy_gd_nonconvex.steps_needed(
            order=6.0, divergence=0.05, **{**BASE, "noise_std": 1e-5, "loss_bound": 1.0}
        )
    with pytest.raises(ParameterError) as caught:
        noisy_gd_nonconvex.steps_needed(
            order=6.0,
            divergence=0.05,
            **{**BASE, "noise_std": GOOD["noise_std"], "dimension": 10**6},
        )
    assert caught.value.name == "learning_rate"


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("weight_decay", 0.0),
        ("smoothness", -1.0),
        ("loss_bound", math.inf),
        ("noise_std", 0.0),
        ("noise_std", 1e-6),
        ("dimension", 0),
        ("records", 0),
        ("request_size", 0),
        ("training_steps", 0),
        ("unlearning_steps", 0),
    ],
)
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        noisy_gd_nonconvex.account(**{**GOOD, name: bad})
    assert caught.value.name == name


def test_refuses_a_step_size_for_which_no_order_works():
    with pytest.raises(ParameterError) as caught:
        noisy_gd_nonconvex.account(**{**GOOD, "learning_rate": 0.1, "noise_std": 1.0})
    assert caught.value.name == "learning_rate"


def test_floats_add_half_a_cell_a_step_and_what_the_sampler_leaves():
    steps = 3 * 10**7
    found = noisy_gd_nonconvex.account(**GOOD)
    noise = GOOD["noise_std"]
    start = noise / math.sqrt(2e-6)
    reach = 2 * math.sqrt(0.5) + start * (math.sqrt(10) + 10)
    cell = math.sqrt(10) * 2.0**-28  # 2^-20 of 0.0028 and up to twice that
    assert 2.0**-29 < noise * 2.0**-20 <= 2.0**-28
    moved = (1 + 2e-6) * cell / 2 + 2.0**-51 * reach
    sampler = 2.2e-7 * math.sqrt(10) + 6e-10 * reach / noise
    expected = math.sqrt(steps) * (sampler + moved / noise)
    assert found.residue.mu == pytest.approx(expected, rel=1e-5)
    assert found.residue.delta == pytest.approx(steps * (10 * 2.0**-56 + 2.0**-58), rel=1e-9)


def test_steps_of_earlier_requests_count_for_rounding():
    once = noisy_gd_nonconvex.account(**GOOD)
    later = noisy_gd_nonconvex.account(**GOOD, earlier_steps=9 * 10**7)
    assert later.residue.mu == pytest.approx(2 * once.residue.mu, rel=1e-9)
    assert later.inner.curve(4.0) == once.inner.curve(4.0)
