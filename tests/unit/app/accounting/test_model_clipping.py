import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting import model_clipping
from app.accounting.published import koloskova
from app.domain.errors import CalibrationError, ParameterError
from benchmarks.calibration import calibrate, steps_needed

GOOD = {
    "epsilon": 1.0,
    "initial_clip": 1.0,
    "model_clip": 0.5,
    "noise_std": 0.5,
    "steps": 6,
    "initial_noise_std": 0.0,
}
ROWS = [(0.5, 0.5, 6, 18), (0.625, 0.5, 9, 29), (0.975, 0.5, 36, 134), (0.001, 0.01, 1, 1)]


def theta(epsilon, r):
    return mpmath.ncdf(r / 2 - epsilon / r) - mpmath.exp(epsilon) * mpmath.ncdf(
        -r / 2 - epsilon / r
    )


def recursion(epsilon, separation, steps, start=None):
    epsilon, separation = mpmath.mpf(epsilon), mpmath.mpf(separation)
    delta = mpmath.mpf(1) if start is None else theta(epsilon, mpmath.mpf(start))
    for _ in range(steps):
        amplified = mpmath.log(1 + (mpmath.exp(epsilon) - 1) / delta)
        delta *= theta(amplified, separation)
    return delta


def test_reference_deltas():
    five = model_clipping.account(**{**GOOD, "steps": 5})
    assert five.at_delta == pytest.approx(2.483e-4, abs=5e-8)
    assert model_clipping.account(**GOOD).at_delta == pytest.approx(2.65341e-8, abs=5e-14)


def test_reference_step_counts_beside_theorem_4_2():
    for clip, noise, ours, theirs in ROWS:
        given_ = {
            "epsilon": 1.0,
            "delta": 1e-5,
            "initial_clip": 1.0,
            "model_clip": clip,
            "noise_std": noise,
        }
        assert model_clipping.steps_needed(**given_) == ours
        assert steps_needed(**given_) == theirs


def test_recursion_is_rounded_up_and_matches_sixty_digits():
    for epsilon, separation, steps, start in (
        (1.0, 2.0, 6, None),
        (0.1, 1.0, 4, None),
        (8.0, 4.0, 3, 5.0),
        (50.0, 12.0, 3, None),
        (1e-3, 3.0, 12, 1.0),
        (1.0, 1.5, 3, None),
    ):
        truth = recursion(epsilon, separation, steps, start)
        found = model_clipping.account(
            epsilon=epsilon,
            initial_clip=1.0,
            model_clip=1.0,
            noise_std=2 / separation,
            steps=steps,
            initial_noise_std=0.0 if start is None else 2 / start,
        ).at_delta
        assert truth * (1 - mpmath.mpf("1e-14")) <= found <= truth * (1 + mpmath.mpf("1e-9"))


def test_delta_goes_on_below_every_float():
    guarantee = model_clipping.account(**{**GOOD, "noise_std": 5.0, "steps": 40})
    assert 0 < guarantee.at_delta < 1e-300


def test_the_guarantee_is_one_point():
    guarantee = model_clipping.account(**GOOD)
    assert guarantee.at_epsilon == 1.0
    with pytest.raises(ParameterError):
        guarantee.delta(epsilon=0.5)
    assert guarantee.meets(epsilon=1.0, delta=1e-5)


def test_calibrated_noise_meets_its_target_and_is_smallest():
    for epsilon, delta, steps in ((1.0, 1e-5, 6), (0.1, 1e-9, 3), (8.0, 1e-15, 20)):
        given_ = {"epsilon": epsilon, "initial_clip": 1.0, "model_clip": 0.5, "steps": steps}
        noise_std = calibrate(model_clipping.account, delta=delta, **given_)
        assert model_clipping.account(noise_std=noise_std, **given_).at_delta <= delta
        below = model_clipping.account(noise_std=noise_std * 0.999, **given_)
        assert below.at_delta > delta


def test_the_odometer_counts_what_account_predicts():
    odometer = model_clipping.Odometer(epsilon=1.0, initial_clip=1.0)
    for _ in range(6):
        assert odometer.step(2.0) == odometer.log_delta
    assert odometer.guarantee().at_delta == pytest.approx(2.65341e-8, abs=5e-14)
    assert odometer.steps == 6


@settings(max_examples=40, deadline=None)
@given(
    epsilon=st.floats(0.01, 20.0),
    clip=st.floats(0.1, 3.0),
    steps=st.integers(1, 15),
    factor=st.floats(1.05, 2.0),
)
def test_delta_is_monotone(epsilon, clip, steps, factor):
    def delta(**change):
        given_ = {**GOOD, "epsilon": epsilon, "model_clip": clip, "steps": steps, **change}
        return model_clipping.account(**given_).at_delta

    slack = 1 + 1e-9
    assert delta(steps=steps + 1) <= delta() * slack
    assert delta(model_clip=clip * factor) * slack >= delta()
    assert delta(noise_std=0.5 * factor) <= delta() * slack
    assert delta(epsilon=epsilon * factor) <= delta() * slack
    assert delta(initial_noise_std=1.0) <= delta() * slack


def test_never_worse_than_theorem_4_2():
    for steps in (1, 3, 6):
        ours = model_clipping.account(**{**GOOD, "steps": steps}).at_delta
        theirs = koloskova.theorem_4_2(**{**GOOD, "steps": steps}).at_delta
        assert ours <= theirs * (1 + 1e-11)


def test_gives_up_on_hopeless_noise():
    with pytest.raises(CalibrationError):
        model_clipping.steps_needed(
            epsilon=1.0, delta=1e-5, initial_clip=1.0, model_clip=1.0, noise_std=0.02
        )


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        (name, bad)
        for name in ("epsilon", "initial_clip", "model_clip", "noise_std")
        for bad in (math.nan, math.inf, 0.0, -1.0)
    ]
    + [("initial_noise_std", -1.0), ("initial_noise_std", math.nan), ("steps", 0), ("steps", True)],
)
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        model_clipping.account(**{**GOOD, name: bad})
    assert caught.value.name == name


def test_floats_move_a_steps_gaussians_apart_and_leave_a_total_variation():
    dimension, steps = 10**6, 6
    found = model_clipping.account(**{**GOOD, "steps": steps}, dimension=dimension)
    apart = 2.0 + 2 * (2.2e-4 + 6e-10)
    left = steps * (dimension * 2.0**-56 + 2.0**-58)
    truth = recursion(1.0, apart, steps) + (1 + math.e) * left
    assert truth * (1 - 1e-9) <= found.at_delta <= truth * (1 + 1e-9)


def test_the_noise_on_the_start_is_a_draw_too():
    given_ = {**GOOD, "steps": 2, "initial_noise_std": 1.0, "dimension": 10**6}
    truth = recursion(1.0, 2.0 + 2 * (2.2e-4 + 6e-10), 2, start=2.0 + 2 * (2.2e-4 + 6e-10))
    truth += (1 + math.e) * 3 * (10**6 * 2.0**-56 + 2.0**-58)
    assert model_clipping.account(**given_).at_delta == pytest.approx(float(truth), rel=1e-9)


def test_calibration_and_step_counts_include_floats():
    given_ = {"epsilon": 1.0, "initial_clip": 1.0, "model_clip": 0.5, "dimension": 10**6}
    noise_std = calibrate(model_clipping.account, **given_, delta=1e-5, steps=6)
    found = model_clipping.account(**given_, noise_std=noise_std, steps=6)
    assert found.at_delta <= 1e-5
    assert model_clipping.steps_needed(**given_, delta=1e-5, noise_std=noise_std) == 6
    less = model_clipping.account(**given_, noise_std=noise_std * (1 - 1e-6), steps=6)
    assert less.at_delta > 1e-5


def test_a_delta_below_what_rounding_leaves_is_never_reached():
    given_ = {"epsilon": 1.0, "initial_clip": 1.0, "model_clip": 0.5, "noise_std": 0.5}
    assert model_clipping.steps_needed(**given_, delta=1e-12) == 7
    with pytest.raises(CalibrationError):
        model_clipping.steps_needed(**given_, delta=1e-12, dimension=10**6)


def test_the_odometer_meets_a_delta_when_its_guarantee_does():
    odometer = model_clipping.Odometer(epsilon=1.0, initial_clip=1.0, dimension=100)
    separation = model_clipping.separation_of(0.5, 0.5, dimension=100)
    for _ in range(6):
        assert not odometer.meets(delta=1e-5)
        odometer.step(separation)
    assert odometer.meets(delta=1e-5)
    assert odometer.guarantee() == model_clipping.account(**GOOD, dimension=100)
