"""A network that keeps something of another, or of records, is refused by name or is harmless."""

import pytest
import torch
from torch import nn

from app.domain.errors import PlanError, RunFailedError
from app.domain.schema import InputSchema
from tests.support import hostile_networks as hostile
from workers.data.backbone_rehearsal import Rehearsal
from workers.mechanisms.rehearsal import rehearse, require_drawn_start
from workers.training.forms import InputForm
from workers.training.networks.base import digests_of
from workers.training.networks.held import copied, digests_held, pinned, start_of
from workers.training.networks.network import Network
from workers.training.tasks.built_in import CLASSIFICATION

RECORDS = InputSchema(shape=(6,), classes=2)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def clean():
    hostile.clean()
    yield
    hostile.clean()


def members(factory):
    """Rehearse, then train one member on large numbers, as a run does; return the next one's start.

    Each build is a copy, as ``workers.training.networks.architectures`` makes it.
    """

    def build():
        return copied(factory())

    require_drawn_start(build)
    rehearse(build, CLASSIFICATION, InputForm.of(RECORDS), device=CPU)
    fresh = pinned(build, Network(build, device=CPU).base, start_of(build))
    first = Network(fresh, device=CPU)
    with torch.no_grad():
        first.module.train()(torch.full((4, 6), 50.0))
        first.flat.values.fill_(7.0)
        for buffer in first.module.buffers():
            buffer.fill_(7)
        first.module(torch.full((4, 6), 50.0))
    return fresh()


@pytest.mark.parametrize("name", hostile.FACTORIES)
def test_a_member_starts_at_nothing_that_another_has_learned(name):
    try:
        second = members(hostile.FACTORIES[name])
    except (PlanError, RunFailedError):
        return
    held = [*second.parameters(), *second.buffers()]
    assert not any(bool((each == 7.0).any()) for each in held)


@pytest.mark.parametrize(
    "name",
    ["the last one's layer, in a global", "a count", "Python's generator", "learned signs"],
)
def test_what_cannot_be_made_harmless_is_refused_by_name(name):
    with pytest.raises(PlanError, match=r"'1\.(weight|bias)'"):
        members(hostile.FACTORIES[name])


@pytest.mark.parametrize(
    "factory",
    [
        lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Dropout(0.1), nn.Linear(4, 2)),
    ],
)
def test_ordinary_networks_pass(factory):
    assert isinstance(members(factory), nn.Module)


def test_copies_share_what_is_public_alone():
    public = nn.Linear(6, 6).requires_grad_(requires_grad=False)
    shared = nn.Linear(6, 2)
    one, other = (copied(nn.Sequential(public, shared)) for _ in range(2))
    assert one[0].weight.data_ptr() == other[0].weight.data_ptr()
    assert one[1].weight.data_ptr() != other[1].weight.data_ptr() != shared.weight.data_ptr()
    assert digests_of(one) == digests_of(other)


def test_all_that_a_network_holds_is_compared():
    module = hostile.backbone("remembers in list")
    before = digests_held(module)
    module(torch.full((1, 6), 9.0))
    changed = {name for name, each in digests_held(module).items() if before.get(name) != each}
    assert changed == {"kept.0"}


@pytest.mark.parametrize("name", hostile.BACKBONES)
def test_a_backbone_of_more_than_one_record_is_refused(name):
    network = hostile.backbone(name)
    with pytest.raises(RunFailedError, match=r"backbone 'b' (keeps|mixes)"):
        Rehearsal("b", network, network, RECORDS).require_independence()


def test_a_backbone_whose_shapes_follow_values_is_given_one_record_at_a_time():
    class Trimming(nn.Module):
        """Leaves out what is zero in all records of the batch: harmless for a mean of the rest."""

        def forward(self, x):
            x = x.flatten(1)
            return x[:, : max(1, int((x != 0).any(0).sum()))].sum(1, keepdim=True)

    def alone(network):
        rehearsal = Rehearsal("b", network, network, RECORDS)
        rehearsal.require_independence()
        return rehearsal.alone

    assert alone(Trimming())
    assert not alone(nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.BatchNorm1d(3)))
