"""The update rule against an independent reimplementation of equation 4 in float64."""

import numpy as np
import pytest
import torch

from app.accounting import model_clipping as accountant
from app.accounting.precision import grid_of
from app.domain.errors import ParameterError, TargetNotMetError
from app.domain.plan import Plan
from tests.support.insecure_noise import InsecureNoise
from workers.mechanisms.model_clipping import from_plan
from workers.noise.generators import SecureNoise
from workers.training.noisy_phase import Conditions

SIZE = 400
EPSILON, DELTA = 1.0, 1e-5
SIZES = {"initial_clip": 2.0, "model_clip": 1.0, "noise_std": 1.0, "initial_noise_std": 0.5}
STEP = {"learning_rate": 0.1, "weight_decay": 2.0}


def plan(**changes):
    needed = accountant.steps_needed(epsilon=EPSILON, delta=DELTA, **SIZES)
    parameters = {"epsilon": EPSILON, **SIZES, "steps": needed} | changes
    return Plan(
        mechanism=accountant.NAME,
        parameters=parameters,
        epsilon=EPSILON,
        delta=DELTA,
        budget_epochs=1.0,
        predicted={},
        settings=STEP,
    )


def full(value):
    return torch.full((SIZE,), value, dtype=torch.float64)


def clipped(vector, norm):
    return vector * min(1.0, norm / np.linalg.norm(vector))


def gradient_at(position):
    return np.sin(3 * position) + 0.2


def test_trajectory_equals_the_equation_in_float64():
    start = np.random.default_rng(0).standard_normal(SIZE)
    position = torch.tensor(start, dtype=torch.float64)
    noise = InsecureNoise(3, environment="test")
    run = from_plan(plan()).begin(position, Conditions(noise=noise, epsilon=EPSILON, delta=DELTA))
    again = InsecureNoise(3, environment="test")

    def fresh(noise_std):
        xi = torch.zeros(SIZE, dtype=torch.float64)
        again.add_(xi, noise_std)
        return xi.numpy()

    x = clipped(start, 2.0) + fresh(0.5)
    while not run.met:
        gradient = torch.from_numpy(gradient_at(position.numpy()))
        run.step(position, gradient)
        x = clipped(x - 0.1 * (gradient_at(x) + 2.0 * x), 1.0) + fresh(1.0)
        np.testing.assert_allclose(position.numpy(), x, rtol=0, atol=2e-5)
        assert (position / grid_of(1.0)).frac().eq(0).all()
    assert run.steps == accountant.steps_needed(epsilon=EPSILON, delta=DELTA, **SIZES)
    assert run.guarantee().meets(epsilon=EPSILON, delta=DELTA)
    assert noise.drawn == {0.5: SIZE, 1.0: run.steps * SIZE}


def test_more_planned_steps_than_needed_are_not_taken():
    run = from_plan(plan(steps=100)).begin(
        full(1.0), Conditions(noise=SecureNoise(), epsilon=EPSILON, delta=DELTA)
    )
    position = full(1.0)
    while not run.met:
        run.step(position, torch.zeros(SIZE))
    assert run.steps == accountant.steps_needed(epsilon=EPSILON, delta=DELTA, **SIZES)


@pytest.mark.parametrize("target", [(EPSILON, DELTA / 1e6), (EPSILON / 2, DELTA)])
def test_a_target_out_of_reach_is_refused_before_anything_changes(target):
    position = full(100.0)
    with pytest.raises(TargetNotMetError):
        from_plan(plan()).begin(
            position, Conditions(noise=SecureNoise(), epsilon=target[0], delta=target[1])
        )
    assert (position == 100.0).all()


def test_an_iterate_that_is_not_finite_is_clipped_to_zero_and_noised():
    run = from_plan(plan()).begin(
        full(1.0), Conditions(noise=SecureNoise(), epsilon=EPSILON, delta=DELTA)
    )
    position = full(1.0)
    run.step(position, torch.full((SIZE,), torch.inf))
    assert torch.isfinite(position).all()


def test_an_unknown_setting_is_named():
    faulty = Plan(**{**vars(plan()), "settings": STEP | {"momentum": 0.9}})
    with pytest.raises(ParameterError, match="momentum"):
        from_plan(faulty)
