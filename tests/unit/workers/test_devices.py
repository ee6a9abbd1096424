"""What must hold on every device: on CPUs always, on CUDA by ``make test-gpu``."""

import gc

import numpy as np
import pytest
import torch
from torch import nn

from app.accounting.precision import grid_of
from app.domain.recipes import TrainingRecipe
from benchmarks.step_overhead import CASES
from workers.noise.generators import SecureNoise
from workers.training.dp_sgd.training import PrivateTraining, train_privately
from workers.training.networks.network import Network

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]
RECIPE = TrainingRecipe(learning_rate=0.5, momentum=0.0, schedule="constant", batch_size=50)
RULES = [(case, name) for case in CASES for name in case.mechanisms if case.is_convex]


class NoNoise:
    name = "none"
    drawn = {}  # noqa: RUF012

    def add_(self, position, noise_std):
        pass


@pytest.fixture(params=DEVICES)
def device(request):
    return torch.device(request.param)


def mlp():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def same_start(device):
    network = Network(mlp, device=device)
    network.load({name: np.sin(np.arange(tensor.size)).reshape(tensor.shape).astype(np.float32) / 10
                  for name, tensor in network.tensors().items()})  # fmt: skip
    return network


def test_digits_are_learned(digits, held_out, device):
    network = Network(mlp, device=device)
    network.train(digits, RECIPE, epochs=10)
    assert network.evaluate(held_out).score > 0.7  # 0.93 usually; chance is 0.1


@pytest.mark.parametrize(("case", "name"), RULES, ids=[f"{c.network}: {n}" for c, n in RULES])
def test_every_rule_takes_its_steps(case, name, device):
    stamps = case.steps_of(name, SecureNoise(device), device, 3)
    assert len(stamps) >= 3
    assert stamps == sorted(stamps)


def test_private_training_without_noise_is_the_same_as_on_a_cpu(digits, device):
    trained = []
    for each in (torch.device("cpu"), device):
        network = same_start(each)
        training = PrivateTraining(
            noise_multiplier=1.0, gradient_clip=0.1, sampling_rate=1.0, steps=3
        )
        train_privately(network, digits, RECIPE, training, noise=NoNoise())
        trained.append(network.flat.values.cpu())
    torch.testing.assert_close(*trained, rtol=1e-3, atol=1e-5)


def test_noise_reaches_the_device_on_the_public_grid(device):
    noise, position = SecureNoise(device), torch.zeros(100_000, dtype=torch.float64, device=device)
    noise.add_(position, 2.0)
    found = position.cpu()
    assert noise.drawn == {2.0: 100_000}
    assert (found / grid_of(2.0)).frac().eq(0).all()
    assert abs(float(found.std()) - 2.0) < 0.05  # 11 standard deviations


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_devices_memory_is_free_again(digits):
    device = torch.device("cuda")
    network = same_start(device)
    gc.collect()
    before = torch.cuda.memory_allocated(device)
    training = PrivateTraining(noise_multiplier=1.0, gradient_clip=1.0, sampling_rate=0.5, steps=3)
    train_privately(network, digits, RECIPE, training, noise=SecureNoise(device))
    gc.collect()
    assert torch.cuda.memory_allocated(device) <= before + (1 << 20)
