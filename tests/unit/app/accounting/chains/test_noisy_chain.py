import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting.chains import noisy_chain
from app.accounting.chains.noisy_chain import NoisyChain
from app.domain.errors import ParameterError


def walked(start_distance, steps):
    chain = NoisyChain(start_distance=start_distance)
    for step in steps:
        chain.step(*step)
    return chain.certified_mu()


def exactly(start_distance, steps):
    drift, variance, best = mpmath.mpf(start_distance), mpmath.mpf(0), mpmath.inf
    for contraction, shift, noise_std in steps:
        drift = mpmath.mpf(contraction) * drift + mpmath.mpf(shift)
        variance = mpmath.mpf(contraction) ** 2 * variance + mpmath.mpf(noise_std) ** 2
        if variance > 0:
            best = min(best, drift / mpmath.sqrt(variance))
    return best


def test_reference_values_of_the_closed_form():
    mu = noisy_chain.constant_mu(
        start_distance=40.0, contraction=0.5, shift=0.2, noise_std=0.25679, steps=11
    )
    # 1.41421246110 to eleven digits.
    assert mu == pytest.approx(1.41421246110, abs=5e-12)
    plain = {"start_distance": 2.0, "contraction": 1.0, "shift": 0.02, "noise_std": 0.5}
    assert noisy_chain.constant_mu(**plain, steps=50) == pytest.approx(0.848528137424, abs=5e-13)
    assert noisy_chain.constant_mu(**plain, steps=400) == pytest.approx(0.8, abs=1e-13)


def test_the_value_without_the_running_minimum_grows_again():
    plain = {"distance": 2.0, "contraction": 1.0, "shift": 0.02, "noise_std": 0.5}
    assert noisy_chain.prefix_mu(**plain, steps=400) == pytest.approx(1.0, rel=1e-12)


def test_walk_is_rounded_up_and_close_to_sixty_digits():
    steps = [(1 - 0.01 * (k % 7), 0.1 / (k + 1), 0.05 + 0.01 * (k % 5)) for k in range(200)]
    truth = exactly(3.0, steps)
    found = walked(3.0, steps)
    assert truth <= found <= truth * (1 + mpmath.mpf("1e-12"))


@settings(max_examples=150, deadline=None)
@given(
    start_distance=st.floats(0.0, 50.0),
    decay=st.sampled_from([0.0, 1e-12, 1e-5, 0.01, 0.3, 0.9, 1 - 1e-9]),
    shift=st.sampled_from([0.0, 1e-4, 0.1, 5.0]),
    noise_std=st.floats(1e-3, 10.0),
    steps=st.integers(1, 60),
)
def test_closed_form_equals_the_walk(start_distance, decay, shift, noise_std, steps):
    if start_distance + shift == 0:
        return
    contraction = 1 - decay
    closed = noisy_chain.constant_mu(
        start_distance=start_distance,
        contraction=contraction,
        shift=shift,
        noise_std=noise_std,
        steps=steps,
    )
    assert closed == pytest.approx(
        walked(start_distance, [(contraction, shift, noise_std)] * steps), rel=1e-11, abs=1e-270
    )


@settings(max_examples=80, deadline=None)
@given(
    start_distance=st.floats(0.01, 50.0),
    contraction=st.floats(0.1, 1.0),
    shift=st.floats(0.0, 5.0),
    noise_std=st.floats(1e-2, 10.0),
    steps=st.integers(1, 100),
    factor=st.floats(1.01, 2.0),
)
def test_closed_form_is_monotone(start_distance, contraction, shift, noise_std, steps, factor):
    def mu(**change):
        given_ = {
            "start_distance": start_distance,
            "contraction": contraction,
            "shift": shift,
            "noise_std": noise_std,
            "steps": steps,
        }
        return noisy_chain.constant_mu(**{**given_, **change})

    slack = 1 + 1e-11
    assert mu(start_distance=start_distance * factor) * slack >= mu()
    assert mu(shift=shift * factor) * slack >= mu()
    assert mu(noise_std=noise_std * factor) <= mu() * slack
    assert mu(steps=steps + 1) <= mu() * slack
    assert mu(contraction=min(1.0, contraction * factor)) * slack >= mu()


def test_a_million_steps_and_an_underflowing_power():
    decayed = noisy_chain.constant_mu(
        start_distance=1.0, contraction=0.5, shift=0.0, noise_std=1.0, steps=10**6
    )
    assert 0 < decayed < 1e-200
    steady = noisy_chain.constant_mu(
        start_distance=1.0, contraction=0.5, shift=0.1, noise_std=1.0, steps=10**6
    )
    assert steady == pytest.approx(0.2 * math.sqrt(0.75), rel=1e-12)
    chain = NoisyChain(start_distance=1.0)
    for _ in range(5000):
        chain.step(0.5, 0.0, 1.0)
    assert 0 < chain.certified_mu() < 1e-280


def test_contraction_next_to_zero_keeps_its_digits():
    decay = 1 - 1e-12
    contraction = noisy_chain.one_minus_product(1.0, decay)
    assert Fraction(contraction) >= 1 - Fraction(decay)
    mu = noisy_chain.constant_mu(
        start_distance=1e9, contraction=contraction, shift=1.0, noise_std=1.0, steps=1
    )
    assert mu == pytest.approx(1.001, rel=1e-4)


def test_one_minus_product_is_the_next_float_above_the_truth():
    for rate, decay in ((0.001, 500.0), (1e-4, 750.0), (0.3, 0.7), (1e-9, 1e-9), (0.9, 1.11)):
        exact = 1 - Fraction(rate) * Fraction(decay)
        found = noisy_chain.one_minus_product(rate, decay)
        assert Fraction(found) >= exact
        assert Fraction(math.nextafter(found, -math.inf)) < exact


def test_no_noise_is_no_guarantee():
    chain = NoisyChain(start_distance=1.0)
    assert chain.mu == math.inf
    with pytest.raises(ParameterError):
        chain.certified_mu()
    chain.step(0.9, 0.1, 0.0)
    with pytest.raises(ParameterError):
        chain.certified_mu()


def test_overflow_is_an_error_and_not_a_pass():
    chain = NoisyChain(start_distance=1.0)
    chain.step(1.0, 0.0, 1e200)
    with pytest.raises(ParameterError):
        chain.certified_mu()
    with pytest.raises(ParameterError):
        walked(1.0, [(1e308, 1e308, 1.0), (1e308, 1e308, 1.0)])


def test_nan_never_turns_into_a_guarantee():
    chain = NoisyChain(start_distance=1.0)
    chain.step(0.9, math.nan, 1.0)
    with pytest.raises(ParameterError):
        chain.certified_mu()


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("start_distance", -1.0),
        ("start_distance", math.inf),
        ("contraction", 0.0),
        ("contraction", 1.1),
        ("contraction", math.nan),
        ("shift", -0.1),
        ("noise_std", 0.0),
        ("noise_std", math.inf),
        ("steps", 0),
        ("steps", 1.5),
    ],
)
def test_refuses_numbers_outside_their_range(name, bad):
    good = {"start_distance": 1.0, "contraction": 0.9, "shift": 0.1, "noise_std": 1.0, "steps": 3}
    with pytest.raises(ParameterError) as caught:
        noisy_chain.constant_mu(**{**good, name: bad})
    assert caught.value.name == name


def test_check_step_names_what_is_wrong():
    with pytest.raises(ParameterError):
        noisy_chain.check_step(contraction=-1.0, shift=0.0, noise_std=1.0)
    with pytest.raises(ParameterError):
        noisy_chain.check_step(contraction=1.0, shift=0.0, noise_std=math.nan)
    noisy_chain.check_step(contraction=1.0, shift=0.0, noise_std=0.0)
