"""Noisy steps need one float64 copy of the weights beside them, and no scratch of their size."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from app.accounting import gradient_clipping, model_clipping, output_perturbation
from workers.mechanisms.descent import Descent
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.mechanisms.model_clipping import ModelClipping
from workers.mechanisms.output_perturbation import OutputPerturbation
from workers.noise.generators import SecureNoise
from workers.training.frame import FlatFrame, FramePart
from workers.training.noisy_phase import Conditions

SIZE = 1 << 20
SMALL = SIZE  # bytes: an eighth of a float64 copy, room for a noise source's buffers
TARGET = {"epsilon": 1.0, "delta": 1e-5}
CLIPS = {"initial_clip": 1.0, "gradient_clip": 1.0, "learning_rate": 0.01, "weight_decay": 50.0}


def largest_allocation(work):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        work()
    return max(event.self_cpu_memory_usage for event in measured.events())


def position():
    return torch.randn(SIZE, dtype=torch.float64)


def gradient_clipping_step():
    noise_std = gradient_clipping.calibrate(**TARGET, **CLIPS, steps=2)
    rule = GradientClipping(**CLIPS, noise_std=noise_std, steps=2)
    here, slope = position(), torch.randn(SIZE)

    def work():
        rule.begin(here, Conditions(noise=SecureNoise(), **TARGET)).step(here, slope)

    return work


def model_clipping_step():
    sizes = {"initial_clip": 1.0, "model_clip": 1.0, "noise_std": 1.0, "initial_noise_std": 0.5}
    steps = model_clipping.steps_needed(**TARGET, **sizes)
    rule = ModelClipping(epsilon=1.0, **sizes, steps=steps, learning_rate=0.1, weight_decay=0.1)
    here, slope = position(), torch.randn(SIZE)

    def work():
        rule.begin(here, Conditions(noise=SecureNoise(), **TARGET)).step(here, slope)

    return work


def output_perturbation_release():
    noise_std = output_perturbation.calibrate(**TARGET, initial_clip=1.0)
    rule, here = OutputPerturbation(initial_clip=1.0, noise_std=noise_std), position()
    return lambda: rule.begin(here, Conditions(noise=SecureNoise(), **TARGET))


def descent_step():
    here, slope = position(), torch.randn(SIZE, dtype=torch.float64)
    step = Descent(0.1, 0.1, noise_std=0.1, radius=1.0)
    return lambda: step.step_(here, slope, SecureNoise())


def change_of_coordinates():
    frame, here = FlatFrame([FramePart(SIZE, torch.ones(SIZE), 2.0)]), position()
    weights, slope = torch.ones(SIZE), torch.ones(SIZE)

    def work():
        frame.weights_at(here, out=[weights])
        frame.pull_back_(slope)

    return work


@pytest.mark.parametrize(
    "make",
    [
        gradient_clipping_step,
        pytest.param(model_clipping_step, marks=pytest.mark.slow),
        pytest.param(output_perturbation_release, marks=pytest.mark.slow),
        descent_step,
        pytest.param(change_of_coordinates, marks=pytest.mark.slow),
    ],
)
def test_a_step_allocates_nothing_of_the_weights_size(make):
    assert largest_allocation(make()) < SMALL


def test_a_position_is_the_one_copy():
    frame, weights = FlatFrame([FramePart(SIZE, torch.ones(SIZE), 2.0)]), torch.ones(SIZE)
    assert largest_allocation(lambda: frame.position_of([weights])) == 8 * SIZE


def test_the_measurement_sees_a_hidden_copy():
    """What ``add_`` does to a gradient of another dtype, unless it gets it in pieces."""
    here, slope = position(), torch.randn(SIZE)
    assert largest_allocation(lambda: here.add_(slope, alpha=0.1)) == 8 * SIZE
