import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting.chains.minorant import Minorant, geometric_sum, log_of, power

NEAR_ONE = [1 - 2.0**-53, 1 - 1e-12, 1 - 1e-6]
RATES = [*NEAR_ONE, 0.999, 0.5, 0.25, 1e-5]
COUNTS = [1, 2, 1000, 2_000_000_000]


def walked(steps, *, start_distance=0.0):
    minorant = Minorant(start_distance=start_distance)
    for contraction, shift, noise_std in steps:
        minorant.step(contraction=contraction, shift=shift, noise_std=noise_std)
    return minorant


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("count", COUNTS)
def test_powers_are_rounded_up_and_never_vanish(rate, count):
    with mpmath.workdps(60):
        exact = mpmath.mpf(rate) ** count
        found = power(rate, count)
        assert found >= exact
        assert found <= max(exact * (1 + mpmath.mpf("6e-13")), mpmath.mpf("3e-290"))
    assert power(rate, 0) == 1.0
    assert power(0.0, count) == 0.0
    assert power(1.0, count) == 1.0


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("count", COUNTS)
def test_geometric_sums_keep_their_digits_near_one(rate, count):
    with mpmath.workdps(60):
        exact = (1 - mpmath.mpf(rate) ** count) / (1 - mpmath.mpf(rate))
        assert geometric_sum(rate, count) == pytest.approx(float(exact), rel=2e-14)
        assert log_of(rate) == pytest.approx(float(mpmath.log(rate)), rel=1e-15)
    assert geometric_sum(1.0, count) == count
    assert geometric_sum(0.0, count) == 1.0


@pytest.mark.parametrize("rate", [1.0, *NEAR_ONE, 0.9])
def test_equal_steps_at_once_are_an_upper_bound_for_one_after_the_other(rate):
    at_once, one_by_one = (walked([(rate, 0.3, 0.0)]) for _ in range(2))
    at_once.steps(contraction=rate, noise_std=0.2, count=3000)
    for _ in range(3000):
        one_by_one.step(contraction=rate, shift=0.0, noise_std=0.2)
    with mpmath.workdps(60):
        exact = mpmath.mpf(rate)
        spread = sum(exact ** (2 * k) for k in range(3000))
        truth = mpmath.mpf(0.3) * exact**3000 / (mpmath.mpf(0.2) * mpmath.sqrt(spread))
        assert truth <= at_once.mu() <= truth * (1 + mpmath.mpf("1e-10"))
        assert truth <= one_by_one.mu() <= truth * (1 + mpmath.mpf("1e-10"))


def test_very_many_steps_near_contraction_one_stay_an_upper_bound():
    rate, count = 1 - 1e-9, 2_000_000_000
    minorant = walked([(1.0, 1.0, 0.0)])
    minorant.steps(contraction=rate, noise_std=1.0, count=count)
    with mpmath.workdps(60):
        exact = mpmath.mpf(rate)
        spread = (1 - exact ** (2 * count)) / (1 - exact**2)
        truth = exact**count / mpmath.sqrt(spread)
        assert truth <= minorant.mu() <= truth * (1 + mpmath.mpf("1e-5"))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1.0, 0.999, 0.9, 0.2]),
    st.integers(1, 6),
    st.integers(1, 9),
    st.floats(0.0, 2.0),
    st.floats(0.05, 2.0),
)
def test_cycles_with_one_visit_count_as_one_step(rate, cycle, cycles, waiting, noise_std):
    """Their chords fall, so only the first and the last point matter."""
    count = cycle * cycles
    shifts = [0.3 * (k % cycle == 0) for k in range(count)]
    before = [(1.0, 0.0, 0.5), (1.0, waiting, 0.0)]
    one_by_one = walked([*before, *((rate, shift, noise_std) for shift in shifts)])
    at_once = walked(before)
    gained = sum(shift * rate ** (count - 1 - k) for k, shift in enumerate(shifts))
    at_once.merged(contraction=rate, gained=gained, noise_std=noise_std, count=count)
    assert at_once.mu() == pytest.approx(one_by_one.mu(), rel=1e-10)


def test_the_reference_value_of_present_records():
    found = walked([(0.95, 0.1, 0.3)] * 100).mu()
    assert found == pytest.approx(2.069377704, abs=5e-10)
    assert geometric_sum(0.95, 100) == pytest.approx((1 - 0.95**100) / 0.05, rel=1e-13)
    assert power(0.95, 100) == pytest.approx(0.95**100, rel=1e-12)


def test_a_shift_that_no_noise_followed_is_hidden_by_nothing():
    assert walked([(0.9, 0.1, 0.5), (0.9, 0.1, 0.0)]).mu() == math.inf
    assert walked([(0.9, 0.0, 0.0)]).mu() == 0.0
    assert walked([], start_distance=1.0).mu() == math.inf


@pytest.mark.parametrize("repeats", [1, 2, 30])
def test_contraction_never_makes_a_shift_vanish(repeats):
    """Too small for a float is not nothing: without noise the worlds still differ."""
    minorant = walked([(1.0, 0.1, 0.0)])
    for _ in range(repeats):
        minorant.steps(contraction=0.4, noise_std=0.0, count=1000)
    assert minorant.mu() == math.inf
    minorant.step(contraction=1.0, shift=0.0, noise_std=1.0)
    assert 0 < minorant.mu() < 1e-250
    step_by_step = walked([(1.0, 0.1, 0.0)] + [(1e-200, 0.0, 0.0)] * 5)
    assert step_by_step.mu() == math.inf


def test_only_a_map_that_forgets_everything_starts_again():
    assert walked([(1.0, 0.1, 0.0), (0.0, 0.0, 0.0)]).mu() == 0.0
    assert walked([(1.0, 9.0, 0.1), (0.0, 0.3, 1.0)]).mu() == pytest.approx(0.3, rel=1e-11)


def test_products_that_underflow_do_not_pool_what_must_stay_apart():
    """Slopes rise from 0 to something, so no noise of the first step hides the second's shift."""
    minorant = walked([(1.0, 0.0, 1e-100), (1.0, 1e-150, 1e-100)])
    assert minorant.mu() == pytest.approx(1e-50, rel=1e-9)


def test_a_copy_goes_on_by_itself():
    first = walked([(0.9, 0.1, 0.5)])
    before = first.mu()
    second = first.copy()
    second.step(contraction=0.9, shift=0.0, noise_std=0.5)
    assert first.mu() == before
    assert second.mu() < before
    assert second.copy().mu() == second.mu()
