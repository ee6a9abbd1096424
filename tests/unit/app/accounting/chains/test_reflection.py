"""The reflection coupling against the worst chain itself, on a fine grid."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr

from app.accounting import gaussian
from app.accounting.catalogue import reflection_delta
from app.accounting.chains.noisy_chain import MOST_STEPS, NoisyStep, least_delta
from app.accounting.chains.reflection import ReflectionCoupling, apart_after
from app.domain.errors import CalibrationError, ParameterError

CHAIN = {"start_distance": 2.0, "contraction": 0.5, "shift": 0.2, "noise_std": 0.275702}


def distances(start, steps, cells):
    """The distances of the worlds that are apart before the last step, cell by cell.

    The worst chain is x <- c x + (shift/2) sign(x) from both ends: its worlds are mirror images,
    and the antisymmetric part of their density is what keeps them apart.
    """
    furthest = start
    top = start
    for step in steps:
        furthest = step.contraction * furthest + step.shift
        top = max(top, furthest + 16 * step.noise_std)
    edges = np.linspace(0, top, cells + 1)
    middles = (edges[1:] + edges[:-1]) / 2

    def moved(step, centres):
        width = 2 * step.noise_std
        ends = edges[:, None]
        return np.diff(ndtr((ends - centres) / width) - ndtr((ends + centres) / width), axis=0)

    points, masses = np.array([start]), np.ones(1)
    kernels = {}
    for count, step in enumerate(steps[:-1]):
        if count == 0:
            masses = moved(step, step.contraction * points + step.shift) @ masses
            points = middles
        else:
            if step not in kernels:
                kernels[step] = moved(step, step.contraction * points + step.shift)
            masses = kernels[step] @ masses
    return points, masses


def worst_delta(start, steps, epsilon, cells=600):
    """delta(epsilon) by conditioning on the last step; at 0 the total variation of the chain."""
    points, masses = distances(start, steps, cells)
    apart = (steps[-1].contraction * points + steps[-1].shift) / steps[-1].noise_std
    far = epsilon / apart
    theta = ndtr(apart / 2 - far) - np.exp(epsilon + log_ndtr(-apart / 2 - far))
    return float(masses @ theta)


def test_total_variation_is_that_of_the_worst_chain():
    for numbers in (
        (2.0, 0.5, 0.2, 0.275702, 20),
        (40.0, 0.5, 0.2, 0.25679, 11),
        (2.0, 0.8, 0.05, 0.3, 30),
        (2.0, 0.0, 0.5, 1.0, 4),
        (0.5, 1.0, 0.1, 0.4, 8),
    ):
        start, contraction, shift, noise, steps = numbers
        step = NoisyStep(contraction, shift, noise)
        exact = worst_delta(start, [step] * steps, 0.0, cells=1600)
        found = apart_after(start, ((step, steps),)).total_variation
        assert exact * (1 - 1e-4) <= found <= exact * 1.005


def test_delta_above_zero_is_an_upper_bound_and_close_where_it_matters():
    step = NoisyStep(0.5, 0.2, 0.275702)
    apart = apart_after(2.0, ((step, 12),))
    for epsilon, looseness in ((0.01, 1.02), (0.5, 1.07), (1.0, 1.07), (2.0, 1.1), (8.0, 4.0)):
        exact = worst_delta(2.0, [step] * 12, epsilon)
        assert exact * (1 - 1e-3) <= apart.delta(epsilon=epsilon) <= exact * looseness


def test_one_step_is_one_gaussian():
    step = NoisyStep(0.8, 0.1, 0.3)
    separation = (0.8 * 1.0 + 0.1) / 0.3
    for epsilon in (0.0, 0.5, 4.0):
        exact = gaussian.delta_of(mu=separation, epsilon=epsilon)
        found = apart_after(1.0, ((step, 1),)).delta(epsilon=epsilon)
        assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-9)


@pytest.mark.parametrize("steps", [1, 3])
def test_worlds_that_a_step_brings_together_are_not_apart(steps):
    for start, contraction in ((1.0, 0.0), (0.0, 0.5)):
        apart = apart_after(start, ((NoisyStep(contraction, 0.0, 1.0), steps),))
        for epsilon in (0.0, 0.5, 4.0):
            assert 0 < apart.delta(epsilon=epsilon) <= 1e-300


def test_two_steps_by_quadrature():
    first, second = NoisyStep(0.5, 0.2, 0.3), NoisyStep(0.9, 0.4, 0.5)
    coupling = ReflectionCoupling(start_distance=1.0)
    coupling.follow(((first, 1), (second, 1)))
    for epsilon in (0.0, 1.0, 3.0):
        exact = worst_delta(1.0, [first, second], epsilon, cells=4000)
        found = coupling.apart(steps=2).delta(epsilon=epsilon)
        assert exact * (1 - 1e-5) <= found <= exact * 1.01


@settings(max_examples=25, deadline=None)
@given(
    start=st.floats(0.1, 20.0),
    contraction=st.floats(0.0, 1.0),
    shift=st.floats(0.01, 1.0),
    noise=st.lists(st.floats(0.2, 2.0), min_size=3, max_size=5),
    epsilon=st.sampled_from([0.0, 0.1, 1.0, 4.0]),
)
def test_no_schedule_makes_it_fall_below_the_worst_chain(start, contraction, shift, noise, epsilon):
    steps = [NoisyStep(contraction, shift, each) for each in noise]
    coupling = ReflectionCoupling(start_distance=start)
    coupling.follow(tuple((step, 1) for step in steps))
    exact = worst_delta(start, steps, epsilon, cells=400)
    # The grid of the comparison is off by up to a thousandth itself.
    assert coupling.apart(steps=len(steps)).delta(epsilon=epsilon) >= exact * (1 - 2e-3) - 1e-12


def test_it_grows_with_what_drives_the_worlds_apart_and_falls_with_noise_and_steps():
    for epsilon in (0.0, 1.0):
        base = reflection_delta(**CHAIN, steps=10, epsilon=epsilon)
        for name, factor in (("start_distance", 1.5), ("contraction", 1.2), ("shift", 1.1)):
            worse = {**CHAIN, name: CHAIN[name] * factor}
            assert reflection_delta(**worse, steps=10, epsilon=epsilon) > base
        louder = {**CHAIN, "noise_std": 0.3}
        assert reflection_delta(**louder, steps=10, epsilon=epsilon) < base
        assert reflection_delta(**CHAIN, steps=11, epsilon=epsilon) < base
    assert reflection_delta(**CHAIN, steps=10, epsilon=1.0) < reflection_delta(**CHAIN, steps=10)


def test_epsilon_is_the_inverse_of_delta():
    apart = apart_after(2.0, ((NoisyStep(0.5, 0.2, 0.275702), 30),))
    found = apart.epsilon(delta=7e-5)
    assert apart.delta(epsilon=found) <= 7e-5 < apart.delta(epsilon=found * 0.999)
    assert apart.epsilon(delta=1e-3) == 0.0
    with pytest.raises(CalibrationError):
        apart.epsilon(delta=1e-12)


def test_what_no_coupling_goes_below_is_below():
    step = NoisyStep(0.5, 0.2, 0.275702)
    for steps in (1, 5, 40):
        for epsilon in (0.0, 1.0):
            run = ((step, steps),)
            assert least_delta(run=run, epsilon=epsilon) <= apart_after(2.0, run).delta(
                epsilon=epsilon
            )
    assert least_delta(run=((NoisyStep(0.5, 0.0, 1.0), 3),), epsilon=0.0) == 0.0


def test_a_run_may_be_followed_as_it_grows():
    first, second = NoisyStep(0.5, 0.2, 0.3), NoisyStep(0.9, 0.4, 0.5)
    growing = ReflectionCoupling(start_distance=1.0)
    for run in (((first, 1),), ((first, 3),), ((first, 3), (second, 2)), ((first, 3), (second, 4))):
        growing.follow(run)
    whole = apart_after(1.0, ((first, 3), (second, 4)))
    assert growing.apart(steps=7).total_variation == whole.total_variation
    assert growing.apart(steps=3).step == first
    with pytest.raises(ParameterError):
        growing.apart(steps=8)


def test_steps_beyond_those_followed_change_nothing():
    step = NoisyStep(0.99, 0.05, 0.3)
    longest = apart_after(2.0, ((step, MOST_STEPS),))
    assert apart_after(2.0, ((step, 10 * MOST_STEPS),)) is longest


def test_a_run_far_beyond_every_float_stays_a_number():
    step = NoisyStep(0.1, 1e-6, 1.0)
    found = apart_after(1.0, ((step, MOST_STEPS),))
    assert 0 < found.total_variation < 1e-200
    assert found.delta(epsilon=1.0) <= found.total_variation


def test_worlds_too_far_apart_for_floating_point_are_refused():
    with pytest.raises(CalibrationError):
        apart_after(1e140, ((NoisyStep(1.0, 0.0, 1e-100), 1),))


def test_absent_steps_and_noise_are_refused():
    coupling = ReflectionCoupling(start_distance=1.0)
    with pytest.raises(ParameterError):
        coupling.apart(steps=1)
    for bad in (0.0, math.nan, -1.0):
        with pytest.raises(ParameterError):
            NoisyStep(0.5, 0.1, bad)
    with pytest.raises(ParameterError):
        ReflectionCoupling(start_distance=-1.0)
    with pytest.raises(ParameterError):
        reflection_delta(**{**CHAIN, "shift": [0.1, 0.2]}, steps=3)
