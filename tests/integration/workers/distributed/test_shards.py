"""Networks of all kinds, each layer divided by itself, learn what they learn in one process."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from app.domain.errors import PlanError, RunFailedError, SealedStateError
from app.domain.recipes import TrainingRecipe
from tests.support.processes import together
from workers.distributed import shards
from workers.distributed.execution import Elsewhere
from workers.mechanisms.rehearsal import rehearse
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network
from workers.training.orders import require_same_frame
from workers.training.tasks.built_in import CLASSIFICATION
from workers.training.team import ALONE

CPU = torch.device("cpu")
RECORDS, HELD_OUT = 60, 20
FORM = InputForm(shape=(8, 8))
RECIPE = TrainingRecipe(learning_rate=0.2, momentum=0.9, batch_size=20, micro_batches=2)

pytestmark = pytest.mark.slow  # it starts processes


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 10)

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(inputs)
        return self.last(self.attention(inputs, inputs, inputs)[0].mean(dim=1))


class Tied(nn.Module):
    """Two layers with one weight, and one that is there twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.once = self.again = nn.Linear(8, 8)
        self.last = nn.Linear(64, 10)

    def forward(self, inputs):
        seen = self.second(self.first(inputs).tanh())
        return self.last(self.again(self.once(seen).tanh()).flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(8, 6, batch_first=True)
        self.last = nn.Linear(6, 10)

    def forward(self, inputs):
        return self.last(self.recurrent(inputs)[0][:, -1])


class Frozen(nn.Module):
    """Public tensors of both kinds, an own parameter, and tensors of fewer rows than processes."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.public = nn.Linear(64, 12)
        with torch.no_grad():
            self.public.weight.copy_(torch.randn(12, 64, generator=generator))
            self.public.bias.zero_()
        self.public.requires_grad_(requires_grad=False)
        self.register_buffer("shift", torch.arange(12.0) / 12)
        self.scale = nn.Parameter(torch.ones(1))
        self.narrow = nn.Linear(12, 2)
        self.last = nn.Linear(2, 10)

    def forward(self, inputs):
        seen = self.public(inputs.flatten(1)).tanh() * self.scale + self.shift
        return self.last(self.narrow(seen))


def convolution():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 10),
    )


NETWORKS = {
    "attention": Attention,
    "tied": Tied,
    "recurrent": Recurrent,
    "frozen": Frozen,
    "convolution": convolution,
}


class InOneOrder(Examples):
    def epoch(self, batch_size, *, device, **_):
        return self.in_order(batch_size, device=device)


def records(count, seed):
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(count, 8, 8)).astype(np.float32)
    target = generator.integers(10, size=count)
    return InOneOrder(
        {"inputs": torch.from_numpy(inputs), "target": torch.from_numpy(target)}, FORM
    )


def seen_by(team):
    if team.leads:
        return records(RECORDS, 1), records(HELD_OUT, 2)
    return Elsewhere(RECORDS, FORM), Elsewhere(HELD_OUT, FORM)


def network_of(team, factory):
    network = Network(factory, device=CPU, team=team)
    generator = torch.Generator().manual_seed(5)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.3
        for name, shape in network.flat.shapes.items()
    }
    whole = {**network.module.state_dict(), **weights}
    if "second.weight" in whole:
        whole["second.weight"] = whole["first.weight"]
        whole |= {f"again.{name}": whole[f"once.{name}"] for name in ("weight", "bias")}
    network.load({name: whole[name] for name in network._own()} if team.leads else None)
    return network


@contextmanager
def blocks_of(parameters):
    """Divide every layer that has so many parameters by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_BLOCK", parameters)
        yield


def learned(team):
    """The weights of every network after training, in the leading process, and how it held them."""
    found = {}
    for name, factory in NETWORKS.items():
        with blocks_of(1):
            network = network_of(team, factory)
        held = sum(each.numel() for each in network.flat.held)
        steps = network.train(seen_by(team)[0], RECIPE, epochs=2)
        network.flat.require_attached()
        gathered = network.gathered()
        found[name] = gathered.tensors() if team.leads else None, held, network.flat.size, steps
    return found


@pytest.fixture(scope="module")
def of_one():
    return learned(ALONE)


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_every_layer_divided_by_itself_learns_the_same(devices, of_one):
    results = together(learned, devices=devices)
    for name, (tensors, whole, size, steps) in of_one.items():
        found, *_ = results[0][name]
        assert found.keys() == tensors.keys()
        for each, tensor in tensors.items():
            np.testing.assert_allclose(found[each], tensor, rtol=1e-3, atol=2e-4, err_msg=name)
        parts = [result[name][1] for result in results]
        assert sum(parts) == whole == size
        assert max(parts) < size
        assert {result[name][3] for result in results} == {steps}


def impatient(team):
    """Training that held-out records end, of a network with statistics."""

    def factory():
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
        )

    with blocks_of(1):
        network = network_of(team, factory)
    recipe = TrainingRecipe(learning_rate=0.5, batch_size=20, patience=2)
    retain, held_out = seen_by(team)
    losses = []
    steps = network.train(
        retain,
        recipe,
        epochs=60,
        held_out=held_out,
        on_progress=lambda *told: losses.append(float(told[2])),
    )
    return steps, losses


def test_held_out_records_end_the_training_of_all_at_once():
    results = together(impatient, devices=3)
    assert results[0] == results[1] == results[2]
    steps, _ = results[0]
    assert steps % 3 == 0
    assert steps < 180


def refused(team, factory, block):
    try:
        with blocks_of(block):
            rehearse(factory, CLASSIFICATION, FORM, device=CPU, team=team)
    except (PlanError, RunFailedError) as error:
        return type(error).__name__, str(error)
    return None


class Reaching(nn.Module):
    """Reads the weights of a layer without calling it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, inputs):
        return nn.functional.linear(inputs.flatten(1), self.inner.weight)


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.inner = nn.Linear(64, 10)

    def forward(self, inputs):
        return self.inner(inputs.flatten(1)) * self.scale


class Remembering(nn.Module):
    """Keeps the largest number that it has seen, where no state_dict shows it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)
        self.seen = [0.0]

    def forward(self, inputs):
        self.seen[0] = max(self.seen[0], float(inputs.abs().max()))
        return self.inner(inputs.flatten(1)) * self.seen[0]


def rehearsed(team):
    large = shards._BLOCK
    return {
        "attention": refused(team, Attention, 1),
        "tied": refused(team, Tied, 1),
        "reaching": refused(team, Reaching, 1),
        "reaching, small": refused(team, Reaching, large),
        "scalar": refused(team, Scalar, large),
        "remembering": refused(team, Remembering, 1),
    }


def test_what_cannot_be_divided_is_refused_before_any_record_is_read():
    for found in together(rehearsed, devices=3):
        assert found["attention"] is found["tied"] is found["reaching, small"] is None
        kind, reason = found["reaching"]
        assert kind == "RunFailedError"
        assert "EXPUNGE_DEVICES" in reason
        kind, reason = found["scalar"]
        assert (kind, "'scale'" in reason) == ("PlanError", True)
        kind, reason = found["remembering"]
        assert (kind, "after it saw others" in reason) == ("PlanError", True)


def moved(team):
    """Networks that put a parameter elsewhere, or have a new one, are found out."""
    found = []
    for fault in ("moved", "new", "replaced"):
        network = Network(convolution, device=CPU, team=team)
        last = network.module[5]
        if fault == "moved":
            last.weight._local_tensor = last.weight._local_tensor.clone()
        elif fault == "new":
            last.extra = nn.Parameter(torch.ones(3))
        else:
            last.weight = nn.Parameter(torch.ones(10, 144))
        try:
            network.flat.require_attached()
        except SealedStateError as error:
            found.append(str(error))
    return found


def test_a_parameter_that_is_moved_is_found_out():
    for found in together(moved, devices=3):
        assert ["moved" in found[0], "created" in found[1], "moved" in found[2]] == [True] * 3


def framed(team):
    """Whether a process finds out that its factory draws other numbers than the leading one's."""

    def factory():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10 if team.leads else 11))

    require_same_frame(team, None)
    require_same_frame(team, ReferenceFrame.of(convolution))
    try:
        require_same_frame(team, ReferenceFrame.of(factory))
    except PlanError as error:
        return str(error)
    return None


def test_a_network_that_starts_otherwise_in_another_process_is_refused():
    leading, *others = together(framed, devices=3)
    assert leading is None
    assert all("differs between processes" in found for found in others)
