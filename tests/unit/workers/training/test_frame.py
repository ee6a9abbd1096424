"""The reference frame: independent of data and of hidden randomness, and a correct change."""

import json

import pytest
import torch
from torch import nn

from app.domain.architectures import PRESETS
from app.domain.errors import RunFailedError
from workers.training.frame import Centre, RawWeights, ReferenceFrame
from workers.training.networks.architectures import build
from workers.training.networks.network import Network

CPU = torch.device("cpu")


def normalised():
    return nn.Sequential(nn.Linear(300, 200), nn.BatchNorm1d(200), nn.Linear(200, 3))


def cifar():
    return build(
        PRESETS["koloskova_cifar"], input_shape=(3, 32, 32), classes=10, allowed_factories=[]
    )


def test_scale_is_the_standard_deviation_of_the_initialisation():
    scale = ReferenceFrame.of(cifar).scale
    expected = {
        "0.weight": (2 / 27) ** 0.5,
        "3.weight": (2 / 288) ** 0.5,
        "8.weight": 0.1 * (2 / 64) ** 0.5,
    }
    for name, deviation in expected.items():
        assert scale[name] == pytest.approx(deviation, rel=0.05)


def test_constant_tensors_are_their_own_centre_and_take_the_median_scale():
    frame = ReferenceFrame.of(normalised)
    assert torch.equal(frame.centre["1.weight"], torch.ones(200))
    assert torch.equal(frame.centre["1.bias"], torch.zeros(200))
    assert not frame.centre["0.weight"].any()
    random = sorted(frame.scale[name] for name in ("0.weight", "0.bias", "2.weight", "2.bias"))
    assert frame.scale["1.weight"] == frame.scale["1.bias"] == pytest.approx(sum(random[1:3]) / 2)


def test_a_network_without_random_tensors_has_scale_1():
    frame = ReferenceFrame.of(lambda: nn.Sequential(nn.BatchNorm1d(3)))
    assert set(frame.scale.values()) == {1.0}


def test_the_frame_is_the_same_each_time_and_leaves_torchs_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = ReferenceFrame.of(normalised)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second = ReferenceFrame.of(normalised)
    assert first.scale == second.scale
    assert all(torch.equal(first.centre[name], second.centre[name]) for name in first.centre)


def test_public_weights_become_the_centre():
    public = {name: tensor.numpy() for name, tensor in normalised().state_dict().items()}
    frame = ReferenceFrame.of(normalised, public_weights=public)
    assert frame.to_json()["centre"] == "public_weights"
    assert frame.origin is Centre.PUBLIC_WEIGHTS
    network = Network(normalised, device=CPU)
    network.load(public)
    flat = network.flat
    assert not frame.on(flat).position_of(flat.held).any()


def test_public_weights_of_a_network_for_other_classes_leave_its_last_layer_where_it_was():
    public = dict(
        nn.Sequential(nn.Linear(300, 200), nn.BatchNorm1d(200), nn.Linear(200, 5)).state_dict()
    )
    del public["1.bias"]
    source = {"name": "other-task", "sha256": "ab" * 32}
    frame = ReferenceFrame.of(normalised, public_weights=public, public_source=source)
    plain = ReferenceFrame.of(normalised)
    for name in ("0.weight", "0.bias", "1.weight"):
        assert torch.equal(frame.centre[name], public[name])
    for name in ("1.bias", "2.weight", "2.bias"):
        assert torch.equal(frame.centre[name], plain.centre[name])
    assert frame.scale == plain.scale
    document = frame.to_json()
    assert document["centre"] == "public_weights"
    assert document["public_tensors"] == ["0.weight", "0.bias", "1.weight"]
    assert document["public_source"] == source


def test_public_weights_that_are_not_finite_are_refused():
    public = normalised().state_dict() | {"2.bias": torch.full((3,), torch.nan)}
    with pytest.raises(RunFailedError, match=r"2\.bias"):
        ReferenceFrame.of(normalised, public_weights=public)


def test_public_weights_of_other_tensors_leave_the_frame_as_it_is():
    public = {"2.bias": torch.zeros(4), "elsewhere": torch.zeros(3)}
    frame = ReferenceFrame.of(normalised, public_weights=public)
    assert frame.to_json() == ReferenceFrame.of(normalised).to_json()


def test_change_of_coordinates_matches_its_definition_tensor_by_tensor():
    network = Network(normalised, device=CPU)
    flat = network.flat
    frame = ReferenceFrame.of(normalised)
    on = frame.on(flat)
    position = on.position_of(flat.held)
    pulled = on.pull_back_(torch.ones(flat.size))
    sizes = [shape.numel() for shape in flat.shapes.values()]
    for name, u, w in zip(flat.shapes, position.split(sizes), pulled.split(sizes), strict=True):
        weights = network.module.get_parameter(name).detach()
        expected = (weights - frame.centre[name]).double() / frame.scale[name]
        torch.testing.assert_close(u, expected.reshape(-1), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(w, torch.full_like(w, frame.scale[name]))
    again = [torch.empty_like(held) for held in flat.held]
    on.weights_at(position, out=again)
    assert torch.equal(torch.cat(again), flat.values)  # float64 in between loses nothing of float32


@pytest.mark.parametrize("centred", [False, True])
def test_the_weights_are_those_of_the_position_rounded_once(centred):
    public = normalised().state_dict() if centred else None
    network = Network(normalised, device=CPU)
    frame = ReferenceFrame.of(normalised, public_weights=public)
    on = frame.on(network.flat)
    position = on.position_of(network.flat.held)
    assert position.dtype == torch.float64
    position += 1e-12 * torch.arange(position.numel())
    weights = [torch.empty_like(held) for held in network.flat.held]
    on.weights_at(position, out=weights)
    expected = torch.cat([
        frame.centre[name].double().expand(shape).reshape(-1)
        + frame.scale[name] * part
        for (name, shape), part in zip(
            network.flat.shapes.items(),
            position.split([shape.numel() for shape in network.flat.shapes.values()]),
            strict=True,
        )
    ])  # fmt: skip
    assert torch.equal(torch.cat(weights), expected.float())


def test_a_network_of_float64_has_positions_of_its_own_precision():
    network = Network(normalised, device=CPU, dtype=torch.float64)
    with torch.no_grad():
        network.flat.values.add_(1e-13)
    on = ReferenceFrame.of(normalised).on(network.flat)
    again = [torch.empty_like(held) for held in network.flat.held]
    on.weights_at(on.position_of(network.flat.held), out=again)
    torch.testing.assert_close(torch.cat(again), network.flat.values, rtol=1e-15, atol=1e-15)


def test_without_a_frame_position_and_weights_are_one():
    weights, gradient = torch.ones(3, dtype=torch.float64), torch.ones(3)
    coordinates = RawWeights(weights)
    assert coordinates.position_of([weights]) is weights
    assert coordinates.pull_back_(gradient) is gradient


def test_the_frame_of_another_architecture_is_refused():
    flat = Network(cifar, device=CPU).flat
    with pytest.raises(RunFailedError, match="another architecture"):
        ReferenceFrame.of(normalised).on(flat)


def test_json_holds_every_tensor_and_nothing_but_plain_numbers():
    document = json.loads(json.dumps(ReferenceFrame.of(normalised).to_json()))
    assert document["centre"] == "initialisation_mean"
    assert list(document["scale"]) == [name for name, _ in normalised().named_parameters()]
