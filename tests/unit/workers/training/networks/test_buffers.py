"""Running statistics hold data: they are absent under noise and recomputed afterwards."""

import pytest
import torch
from torch import nn

from app.domain.errors import PlanError
from workers.training.networks.buffers import (
    recompute_buffers,
    require_supported_buffers,
    reset_buffers,
    statistics_of,
    without_buffers,
)

LAYERS = [
    nn.BatchNorm1d(3),
    nn.BatchNorm1d(3, momentum=None),
    nn.InstanceNorm1d(3, track_running_stats=True),
    nn.SyncBatchNorm(3),
]


class Unjudged:
    """A task that asks for the outputs alone."""

    def predict(self, module, batch):
        return {"outputs": module(batch["inputs"])}


def batches(seed=0, count=4):
    generator = torch.Generator().manual_seed(seed)
    return [{"inputs": 5 + 2 * torch.randn(20, 3, 7, generator=generator)} for _ in range(count)]


def snapshot(layer):
    return {name: buffer.clone() for name, buffer in layer.named_buffers()}


@pytest.mark.parametrize("layer", LAYERS[:3], ids=repr)
def test_no_forward_pass_reaches_the_statistics_while_they_are_away(layer):
    layer.train()
    reset_buffers(layer)
    initial = snapshot(layer)
    assert not initial["running_mean"].any()
    assert (initial["running_var"] == 1).all()
    with without_buffers(layer):
        for batch in batches():
            normalised = layer(batch["inputs"])
        assert not layer.state_dict().keys() & initial.keys()
    torch.testing.assert_close(normalised.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    for name, buffer in layer.named_buffers():
        assert torch.equal(buffer, initial[name])


def test_statistics_come_back_after_a_failure():
    layer = nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match="expected"), without_buffers(layer):
        layer(torch.zeros(3))
    assert layer.running_mean is not None


@pytest.mark.parametrize("layer", LAYERS[:3], ids=repr)
def test_recomputed_statistics_are_plain_averages_whatever_was_there(layer):
    momentum = layer.momentum
    layer.eval()
    with torch.no_grad():
        layer.running_mean.fill_(1e9)
    recompute_buffers(layer, Unjudged(), batches)
    torch.testing.assert_close(layer.running_mean, torch.full((3,), 5.0), atol=0.3, rtol=0)
    torch.testing.assert_close(layer.running_var, torch.full((3,), 4.0), atol=0.6, rtol=0)
    means = torch.stack(
        [features.mean(dim=(0, 2)) for batch in batches() for features in batch.values()]
    )
    torch.testing.assert_close(layer.running_mean, means.mean(dim=0))
    assert layer.momentum == momentum
    assert not layer.training


def test_recomputation_leaves_dropout_off_and_modes_as_they_were():
    module = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    module.train()
    ones = [{"inputs": torch.ones(10, 3)}] * 3
    recompute_buffers(module, Unjudged(), lambda: ones)
    torch.testing.assert_close(module[1].running_mean, torch.ones(3))
    assert module.training
    assert module[0].training


def test_nothing_is_read_without_statistics():
    def fail():
        raise AssertionError("read the records")

    recompute_buffers(nn.Linear(2, 2), Unjudged(), fail)


class WithBuffer(nn.Module):
    def __init__(self, *, persistent=True):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(2), persistent=persistent)


class OddNorm(nn.BatchNorm1d):
    def __init__(self):
        super().__init__(3)
        self.register_buffer("largest", torch.zeros(3))


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return torch.zeros(3)

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.Sequential(WithExtraState(2, 2)), "0._extra_state"),
        (nn.Sequential(nn.BatchNorm1d(3).half()), "0.running_mean"),
    ],
)
def test_other_state_is_refused_by_name(module, name):
    with pytest.raises(PlanError, match=name.replace(".", r"\.")):
        require_supported_buffers(module)


@pytest.mark.parametrize("persistent", [False, True])
def test_other_buffers_are_no_statistics_and_stay_where_they_are(persistent):
    module = nn.Sequential(WithBuffer(persistent=persistent), OddNorm())
    require_supported_buffers(module)
    assert {"0.seen", "1.largest"}.isdisjoint(statistics_of(module))
    module[1].largest.fill_(5.0)
    reset_buffers(module)
    with without_buffers(module):
        assert torch.equal(module[1].largest, torch.full((3,), 5.0))
        assert module[1].running_mean is None
    assert set(statistics_of(module)) == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }


def test_normalisation_layers_are_accepted_also_when_used_twice():
    layer = nn.BatchNorm1d(3)
    require_supported_buffers(nn.Sequential(layer, nn.ReLU(), layer))
    for accepted in LAYERS:
        require_supported_buffers(nn.Sequential(accepted))
