"""What a training draws follows from its seed alone, and from nothing before it."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

from app.domain import provenance
from app.domain.errors import SealedStateError
from app.domain.provenance import Provenance
from app.domain.recipes import TrainingRecipe
from workers.training.examples import classified
from workers.training.networks.network import Network
from workers.training.seed import Seed, made_with

CPU = torch.device("cpu")
SEED = "5a" * 32


def drawn(seed):
    seed.draw()
    return (
        torch.rand(3).tolist(),
        random.random(),
        np.random.rand(3).tolist(),  # noqa: NPY002
        seed.order().permutation(20).tolist(),
    )


def test_the_same_seed_draws_the_same_and_each_use_its_own():
    assert drawn(Seed(SEED)) == drawn(Seed(SEED))
    assert drawn(Seed(SEED)) != drawn(Seed())
    uses = ("start", "torch", "python", "numpy", "order")
    assert len({Seed(SEED).number(use) for use in uses}) == len(uses)


def test_no_two_trainings_have_one_seed_by_chance():
    seeds = [Seed().provenance(CPU).seed for _ in range(100)]
    assert len(set(seeds)) == 100
    assert {len(bytes.fromhex(each)) for each in seeds} == {32}


def test_a_seed_is_not_printed_and_does_not_leave():
    seed = Seed(SEED)
    known = seed.provenance(CPU)
    for shown in (repr(seed), str(seed), repr(known), f"{known}", known.in_words()):
        assert SEED not in shown
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(SealedStateError):
            send(seed)


def trained(seed, module, *, threads=1):
    torch.set_num_threads(threads)
    network = Network(module, device=CPU, seed=seed)
    generator = np.random.default_rng(1)
    features = generator.normal(size=(64, 6)).astype(np.float32)
    records = classified(features, generator.integers(0, 3, size=64))
    network.train(records, TrainingRecipe(batch_size=8), epochs=2)
    return {name: each.tobytes() for name, each in network.tensors().items()}


def dropping():
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.Linear(32, 3))


def test_a_training_is_a_function_of_its_seed_and_records():
    first = trained(Seed(SEED), dropping)
    trained(None, dropping)
    assert trained(Seed(SEED), dropping) == first
    assert trained(Seed(), dropping) != first
    assert trained(None, dropping) != trained(None, dropping)


class Unrepeatable(nn.Linear):
    """Writes to places that may be the same one, of which PyTorch promises no order."""

    def forward(self, inputs):
        places = torch.zeros(2, dtype=torch.int64)
        return super().forward(inputs.clone().put_(places, inputs.flatten()[:2]))


def test_a_kernel_that_computes_otherwise_each_time_leaves_no_provenance():
    seed = Seed()
    before = torch.get_deterministic_debug_mode()
    trained(seed, dropping)
    assert seed.provenance(CPU) is not None
    assert torch.get_deterministic_debug_mode() == before
    seed = Seed()
    trained(seed, lambda: Unrepeatable(6, 3))
    assert seed.provenance(CPU) is None


def test_what_must_be_equal_is_named_for_all_members_or_for_none():
    here = made_with(CPU)
    assert here["threads"] == str(torch.get_num_threads())
    other = Provenance(SEED, here | {"threads": "64"})
    found = {0: Provenance(SEED, here), 1: other, 2: other}
    assert provenance.from_bytes(provenance.to_bytes(found)) == found
    said = provenance.arithmetic(found, (0, 1, 2))
    assert said.count("; or ") == 1
    assert all(each.in_words() in said for each in found.values())
    assert provenance.arithmetic(found, (0, 3)) is None
