"""A network's dtype: as it was built, or the one that is asked for, whatever its inputs."""

import numpy as np
import pytest
import torch
from torch import nn

from app.domain.errors import RunFailedError
from app.domain.recipes import TrainingRecipe
from workers.training.networks.network import Network

CPU = torch.device("cpu")


def factory():
    return nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_has_the_dtype_that_is_asked_for_and_takes_any_floats(dtype):
    network = Network(factory, device=CPU, dtype=dtype)
    assert network.flat.values.dtype == dtype
    assert {buffer.dtype for buffer in network.module.buffers()} == {dtype, torch.int64}
    for features in (torch.randn(5, 64), torch.randn(5, 64, dtype=torch.float64)):
        assert network.module(features).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_dtype_it_stays_as_it_was_built(dtype):
    network = Network(lambda: factory().to(dtype), device=CPU)
    assert network.flat.values.dtype == dtype
    assert not network.module._forward_pre_hooks


def test_a_network_of_float64_computes_in_it():
    network = Network(factory, device=CPU, dtype=torch.float64)
    network.module.eval()
    plain = factory().double().eval()
    plain.load_state_dict(network.module.state_dict())
    features = torch.randn(5, 64)
    assert torch.equal(network.module(features), plain(features.double()))


def test_a_network_of_float64_trains_evaluates_and_keeps_its_digits(digits, held_out):
    network = Network(factory, device=CPU, dtype=torch.float64)
    network.train(digits, TrainingRecipe(), epochs=5)
    assert network.evaluate(held_out).score > 0.5  # 0.85 usually; chance is 0.1
    tensors = network.tensors()
    assert tensors["0.weight"].dtype == np.float64
    other = Network(factory, device=CPU, dtype=torch.float64)
    other.load(tensors)
    assert torch.equal(other.flat.values, network.flat.values)
    assert not torch.equal(network.flat.values, network.flat.values.float().double())


def test_evaluating_with_more_noise_leaves_no_trace_of_it(digits, held_out):
    network = Network(factory, device=CPU, dtype=torch.float64)
    network.train(digits, TrainingRecipe(), epochs=5)
    before, exact = network.evaluate(held_out), network.flat.values.clone()
    assert network.evaluate_noisier(held_out, 0.0) == before
    assert network.evaluate_noisier(held_out, 100.0).score < before.score - 0.3
    assert torch.equal(network.flat.values, exact)
    with pytest.raises(AttributeError):
        network.evaluate_noisier(None, 1.0)
    assert torch.equal(network.flat.values, exact)


def test_a_batch_is_computed_once_for_its_loss_and_its_predictions(held_out):
    network, seen = Network(factory, device=CPU), []
    network.module.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    network.evaluate(held_out)
    assert sum(seen) == len(held_out)


def test_a_loaded_network_has_weights_and_statistics_of_the_one_that_was_saved(digits):
    saved, loaded = (Network(factory, device=CPU) for _ in range(2))
    saved.train(digits, TrainingRecipe(batch_size=100), epochs=1)
    tensors = saved.tensors()
    assert tensors["1.running_mean"].any()
    loaded.load(tensors)
    assert loaded.tensors().keys() == tensors.keys()
    for name, tensor in loaded.tensors().items():
        np.testing.assert_array_equal(tensor, tensors[name], err_msg=name)


class Tied(nn.Sequential):
    """A weight, a whole layer with its statistics, and a frozen scale, each under two names."""

    def __init__(self):
        super().__init__(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        self[2].weight = self[0].weight
        self.again = self[1]
        self.scale = self.of_output = nn.Parameter(torch.ones(3), requires_grad=False)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("0.weight", "2.weight"),
        ("1.bias", "again.bias"),
        ("1.running_mean", "again.running_mean"),
    ],
)
def test_weights_that_differ_under_two_names_of_one_tensor_are_refused(name, other):
    network = Network(Tied, device=CPU)
    tensors = Network(Tied, device=CPU).tensors()
    network.load(tensors)
    tensors[other] = tensors[other] + 1
    before = network.flat.values.clone()
    with pytest.raises(RunFailedError, match=f"differ in '{name}' and '{other}'"):
        network.load(tensors)
    assert torch.equal(network.flat.values, before)
