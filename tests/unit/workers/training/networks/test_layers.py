"""Features from named layers: pooled, in the order given, and refused in words."""

import pytest
import torch
from torch import nn

from app.domain.architectures import FeatureLayer
from app.domain.errors import RunFailedError
from tests.support.networks import Computing
from workers.training.networks.layers import Layered


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.unused = nn.Linear(1, 1)

    def forward(self, tokens):
        return self.lstm(tokens)[0][:, -1]

    def token_mask(self, tokens):
        return tokens.abs().sum(dim=2) > 0


@pytest.fixture
def images():
    torch.manual_seed(3)
    return torch.rand(5, 2, 6, 8)


@pytest.fixture
def network():
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 7)
    ).eval()


def features(network, layers, inputs):
    with torch.no_grad():
        return Layered(network, layers)(inputs)


def test_layers_are_pooled_and_put_side_by_side_in_the_order_given(network, images):
    layers = [FeatureLayer("3"), FeatureLayer("0", "2x2"), FeatureLayer("0", std=True)]
    found = features(network, layers, images)
    with torch.no_grad():
        convolved = network[0](images)  # before the next layer changes it in place
        output = network(images)
    quarters = [
        convolved[:, :, rows, columns].mean(dim=(2, 3))
        for rows in (slice(0, 2), slice(2, 4))
        for columns in (slice(0, 3), slice(3, 6))
    ]
    expected = [
        output,
        torch.stack(quarters, dim=2).flatten(1),
        convolved.mean(dim=(2, 3)),
        convolved.std(dim=(2, 3), correction=0),
    ]
    assert float(convolved.min()) < 0
    torch.testing.assert_close(found, torch.cat(expected, dim=1))


def test_what_a_layer_gives_first_counts_and_tokens_that_only_fill_up_do_not():
    torch.manual_seed(5)
    network = Recurrent()
    tokens = torch.rand(4, 6, 3)
    tokens[:, 4:] = 0
    found = features(network, [FeatureLayer("lstm", std=True)], tokens)
    with torch.no_grad():
        states = network.lstm(tokens)[0][:, :4]
    expected = torch.cat([states.mean(dim=1), states.std(dim=1, correction=0)], dim=1)
    torch.testing.assert_close(found, expected)


def test_a_network_is_left_as_it_was(network, images):
    before = network(images)
    layered = Layered(network, [FeatureLayer("0")])
    layered(images)
    assert torch.equal(network(images), before)
    assert not network[0]._forward_hooks
    with pytest.raises(RuntimeError):
        layered(images[:, :1])
    assert not network[0]._forward_hooks


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (FeatureLayer("encoder.block.7"), "among its 4 are '0', '1', '2', '3'"),
        (FeatureLayer("00"), "close to it are '0'"),
        (FeatureLayer("3", "2x2"), r"shape \[5, 7\], has no quarters"),
        (FeatureLayer("3", std=True), "no positions"),
    ],
)
def test_a_layer_that_cannot_be_used_is_refused(network, images, layer, reason):
    with pytest.raises(RunFailedError, match=reason):
        features(network, [layer], images)


@pytest.mark.parametrize(
    ("network", "layer", "inputs", "reason"),
    [
        (
            Computing(lambda own, x: own.layer(own.layer(x)), layer=nn.Linear(3, 3)),
            "layer",
            torch.rand(2, 3),
            "'layer' twice",
        ),
        (Recurrent(), "unused", torch.rand(2, 4, 3), "does not call its layer 'unused'"),
        (nn.Sequential(nn.Flatten(0)), "0", torch.rand(2, 3), r"shape \[6\], cannot be pooled"),
        (nn.Sequential(nn.Unflatten(0, (4, 2))), "0", torch.rand(8, 3), "cannot be pooled"),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "0", torch.rand(2, 1, 1, 9), "has no quarters"),
    ],
)
def test_an_output_of_another_form_is_refused(network, layer, inputs, reason):
    pool = "2x2" if inputs.dim() == 4 else "1x1"
    with pytest.raises(RunFailedError, match=reason):
        features(network, [FeatureLayer(layer, pool)], inputs)


def test_it_is_exported_for_any_number_of_records(network, images):
    layered = Layered(network, [FeatureLayer("0", "2x2"), FeatureLayer("3")]).eval()
    records = {0: torch.export.Dim("records")}
    exported = torch.export.export(layered, (images,), dynamic_shapes=(records,)).module()
    torch.testing.assert_close(exported(images[:3]), layered(images[:3]))
