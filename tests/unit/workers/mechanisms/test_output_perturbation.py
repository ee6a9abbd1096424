"""Clip, add noise once, take no step."""

import pytest
import torch

from app.accounting import output_perturbation as accountant
from app.accounting.precision import grid_of
from app.domain.errors import SealedStateError, TargetNotMetError
from app.domain.plan import Plan
from tests.support.insecure_noise import InsecureNoise
from workers.mechanisms.output_perturbation import from_plan
from workers.noise.generators import SecureNoise
from workers.training.noisy_phase import Conditions

SIZE = 200_000
EPSILON, DELTA = 1.0, 1e-5


def plan(noise_std=None):
    noise_std = noise_std or accountant.calibrate(epsilon=EPSILON, delta=DELTA, initial_clip=0.5)
    return Plan(
        mechanism=accountant.NAME,
        parameters={"initial_clip": 0.5, "noise_std": noise_std},
        epsilon=EPSILON,
        delta=DELTA,
        budget_epochs=1.0,
        predicted={},
    )


def begin(position, planned=None, noise=None):
    return from_plan(planned or plan()).begin(
        position, Conditions(noise=noise or SecureNoise(), epsilon=EPSILON, delta=DELTA)
    )


def test_the_start_is_clipped_and_noised_once_and_the_target_is_met_without_a_step():
    position = torch.full((SIZE,), 3.0, dtype=torch.float64)
    run = begin(position, noise=InsecureNoise(1, environment="test"))
    noise_std = plan().parameters["noise_std"]
    noise = torch.zeros_like(position)
    InsecureNoise(1, environment="test").add_(noise, noise_std)
    assert float((position - noise).norm()) == pytest.approx(0.5, rel=1e-3)
    assert (position / grid_of(noise_std)).frac().eq(0).all()
    assert run.met
    assert run.steps == 0
    assert run.guarantee().meets(epsilon=EPSILON, delta=DELTA)
    with pytest.raises(SealedStateError):
        run.step(position, position)


def test_too_little_noise_is_refused_before_anything_changes():
    position = torch.ones(10, dtype=torch.float64)
    with pytest.raises(TargetNotMetError):
        begin(position, plan(noise_std=0.99 * plan().parameters["noise_std"]))
    assert (position == 1.0).all()


def test_a_start_that_is_not_finite_counts_as_zero():
    position = torch.full((10,), torch.nan, dtype=torch.float64)
    begin(position)
    assert torch.isfinite(position).all()
