"""A network's base: what belongs to it, its digest, and networks that would change it."""

import numpy as np
import pytest
import torch
from torch import nn

from app.domain.architectures import BaseDigest
from app.domain.errors import PlanError, RunFailedError
from app.domain.recipes import TrainingRecipe
from workers.training.networks.base import digests_of, public_tensors, require_same
from workers.training.networks.network import Network

CPU = torch.device("cpu")


class Adapted(nn.Module):
    """A public layer, tied to itself, with a mask; normalisation and a head are trained."""

    def __init__(self, *, seed=3):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.public = nn.Linear(64, 12)
        self.public.weight = nn.Parameter(
            torch.randn(12, 64, generator=generator) / 8, requires_grad=False
        )
        self.public.bias = nn.Parameter(torch.zeros(12), requires_grad=False)
        self.again = self.public
        self.norm = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 10)
        self.register_buffer("mask", torch.arange(12) % 3 > 0, persistent=False)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, features):
        return self.head(self.norm(self.public(features)).relu() * self.mask * self.scale)


NAMES = [
    *("again.bias", "again.weight", "mask", "public.bias", "public.weight", "scale"),
]


def test_frozen_parameters_and_constant_buffers_are_the_base_under_all_their_names():
    assert sorted(public_tensors(Adapted())) == NAMES
    network = Network(Adapted, device=CPU)
    assert network.base.tensors == tuple(NAMES)
    assert list(network.flat.shapes) == ["norm.weight", "norm.bias", "head.weight", "head.bias"]
    assert Network(lambda: nn.Linear(2, 2), device=CPU).base is None


def test_the_digest_is_of_names_types_shapes_and_bytes():
    def digest(**tensors):
        module = nn.Module()
        for name, tensor in tensors.items():
            module.register_buffer(name, tensor)
        return BaseDigest.of(digests_of(module)).sha256

    ones = torch.ones(2, 3)
    others = [
        digest(a=ones),
        digest(b=ones),
        digest(a=ones.reshape(3, 2)),
        digest(a=ones.double()),
        digest(a=ones.bfloat16()),
        digest(a=ones.bool()),
        digest(a=ones * (1 + 2**-23)),
        digest(a=ones, b=ones),
        digest(a=torch.tensor(1.0)),
    ]
    assert len(set(others)) == len(others)
    strided = torch.ones(3, 2).T
    assert digest(a=strided) == digest(a=ones)


def test_only_trained_tensors_and_statistics_leave_a_network_and_are_overwritten():
    network = Network(Adapted, device=CPU)
    public = {name: tensor.clone() for name, tensor in public_tensors(network.module).items()}
    tensors = network.tensors()
    assert {name.partition(".")[0] for name in tensors} == {"norm", "head"}
    other = Network(Adapted, device=CPU)
    other.load(tensors)
    assert torch.equal(other.flat.values, network.flat.values)
    network.destroy()
    assert not network.flat.values.any()
    left = public_tensors(network.module)
    assert all(torch.equal(tensor, left[name]) for name, tensor in public.items())


def test_weights_with_their_own_frozen_tensors_may_be_loaded_and_with_others_not():
    """Somebody's fully trained network would bring what it learned past the noise."""
    network = Network(Adapted, device=CPU)
    whole = {name: tensor.numpy().copy() for name, tensor in Adapted().state_dict().items()}
    network.load(whole)
    assert np.array_equal(network.tensors()["head.weight"], whole["head.weight"])
    whole["public.weight"][0, 0] += 1e-3
    whole["again.weight"] = whole["public.weight"]
    with pytest.raises(RunFailedError, match=r"(public|again)\.weight.* is not the factory's own"):
        network.load(whole)
    network.require_base()


def test_a_base_with_numbers_that_equal_nothing_is_still_this_very_one():
    def factory():
        module = nn.Linear(2, 2)
        module.register_buffer("mask", torch.tensor([float("nan"), -float("inf")]))
        return module

    network = Network(factory, device=CPU)
    whole = {name: tensor.clone() for name, tensor in network.module.state_dict().items()}
    network.load({name: tensor.double() for name, tensor in whole.items()})
    whole["mask"][1] = 0.0
    with pytest.raises(RunFailedError, match="not the factory's own"):
        network.load(whole)


def test_training_leaves_the_base_as_it_was(digits, held_out):
    network = Network(Adapted, device=CPU)
    before = digests_of(network.module)
    network.train(digits, TrainingRecipe(weight_decay=0.01), epochs=10)
    assert network.evaluate(held_out).score > 0.5
    assert digests_of(network.module) == before


class Unfreezing(Adapted):
    """Trains its base by itself."""

    def forward(self, features):
        if self.training:
            self.public.weight.data += 1e-4 * features.mean()
        return super().forward(features)


class Collecting(Adapted):
    """Keeps what it saw in a buffer that was not there before."""

    def forward(self, features):
        if self.training:
            self.register_buffer("seen", features.mean(dim=0))
        return super().forward(features)


@pytest.mark.parametrize(("kind", "name"), [(Unfreezing, "weight"), (Collecting, "seen")])
def test_a_network_that_changes_its_base_is_refused_by_name(kind, name, digits):
    network = Network(kind, device=CPU)
    with pytest.raises(PlanError, match=f"{name}' changed"):
        network.train(digits, TrainingRecipe(), epochs=1)
    with pytest.raises(PlanError, match=f"{name}' changed"):
        network.tensors()


def test_a_base_that_came_or_went_is_another():
    require_same({"a": "1"}, {"a": "1"}, "differs")
    for now in ({}, {"a": "2"}, {"a": "1", "b": "1"}):
        with pytest.raises(PlanError, match=r"'[ab]' differs"):
            require_same(now, {"a": "1"}, "differs")
