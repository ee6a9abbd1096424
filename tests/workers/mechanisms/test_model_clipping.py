"""The update rule against an independent reimplementation of equation 4 in float64."""

import numpy as np
import pytest
import torch

from app.accounting import model_clipping as accountant
from app.domain.errors import ParameterError, TargetNotMetError
from app.domain.plan import Plan
from workers.mechanisms.model_clipping import ModelClipping
from workers.noise import InsecureNoise, SecureNoise

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


def clipped(vector, norm):
    return vector * min(1.0, norm / np.linalg.norm(vector))


def gradient_at(position):
    return np.sin(3 * position) + 0.2


def test_trajectory_equals_the_equation_in_float64():
    start = np.random.default_rng(0).standard_normal(SIZE)
    position = torch.tensor(start, dtype=torch.float32)
    noise = InsecureNoise(3, environment="test")
    run = ModelClipping.from_plan(plan()).begin(position, noise=noise, epsilon=EPSILON, delta=DELTA)
    again = InsecureNoise(3, environment="test")

    def fresh():
        xi = torch.empty(SIZE, dtype=torch.float64)
        again.normal_(xi)
        return xi.numpy()

    x = clipped(start, 2.0) + 0.5 * fresh()
    while not run.met:
        gradient = torch.from_numpy(gradient_at(position.double().numpy())).float()
        run.step(position, gradient)
        x = clipped(x - 0.1 * (gradient_at(x) + 2.0 * x), 1.0) + fresh()
        np.testing.assert_allclose(position.double().numpy(), x, rtol=0, atol=2e-5)
    assert run.steps == accountant.steps_needed(epsilon=EPSILON, delta=DELTA, **SIZES)
    assert run.guarantee().meets(epsilon=EPSILON, delta=DELTA)


def test_more_planned_steps_than_needed_are_not_taken():
    run = ModelClipping.from_plan(plan(steps=100)).begin(
        torch.ones(SIZE), noise=SecureNoise(), epsilon=EPSILON, delta=DELTA
    )
    position = torch.ones(SIZE)
    while not run.met:
        run.step(position, torch.zeros(SIZE))
    assert run.steps == accountant.steps_needed(epsilon=EPSILON, delta=DELTA, **SIZES)


@pytest.mark.parametrize("target", [(EPSILON, DELTA / 1e6), (EPSILON / 2, DELTA)])
def test_a_target_out_of_reach_is_refused_before_anything_changes(target):
    position = torch.full((SIZE,), 100.0)
    with pytest.raises(TargetNotMetError):
        ModelClipping.from_plan(plan()).begin(
            position, noise=SecureNoise(), epsilon=target[0], delta=target[1]
        )
    assert (position == 100.0).all()


def test_an_iterate_that_is_not_finite_is_clipped_to_zero_and_noised():
    run = ModelClipping.from_plan(plan()).begin(
        torch.ones(SIZE), noise=SecureNoise(), epsilon=EPSILON, delta=DELTA
    )
    position = torch.ones(SIZE)
    run.step(position, torch.full((SIZE,), torch.inf))
    assert torch.isfinite(position).all()


def test_an_unknown_setting_is_named():
    faulty = Plan(**{**vars(plan()), "settings": STEP | {"momentum": 0.9}})
    with pytest.raises(ParameterError, match="momentum"):
        ModelClipping.from_plan(faulty)
