"""Flat views: the module and the buffer are one and the same, through forward and backward."""

import pytest
import torch
from torch import nn

from app.domain.errors import PlanError, SealedStateError
from tests.support.networks import Tied
from workers.training.networks.flat import FlatParameters


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))


@pytest.mark.parametrize(("make", "shape"), [(network, (5, 1, 8, 8)), (Tied, (5, 6))])
def test_outputs_and_gradients_equal_those_of_the_plain_module(make, shape):
    torch.manual_seed(3)
    plain = make()
    torch.manual_seed(3)
    module = make()
    flat = FlatParameters(module)
    flat.attach_gradients()
    inputs = torch.randn(shape)
    for _ in range(2):  # gradients add up, as they do without the buffer
        for one in (plain, module):
            one(inputs).square().sum().backward()
    assert list(flat.shapes) == [name for name, _ in plain.named_parameters()]
    torch.testing.assert_close(flat.values, nn.utils.parameters_to_vector(plain.parameters()))
    gradients = torch.cat([tensor.grad.reshape(-1) for tensor in plain.parameters()])
    torch.testing.assert_close(flat.gradients, gradients)
    flat.require_attached()


def test_writing_the_buffer_changes_the_module_and_the_other_way_round():
    module = network()
    flat = FlatParameters(module)
    flat.values.fill_(0.5)
    assert all((tensor == 0.5).all() for tensor in module.parameters())
    with torch.no_grad():
        module[3].bias.fill_(2.0)
    assert (flat.values[-4:] == 2.0).all()


def test_views_survive_an_optimiser_and_gradients_can_be_attached_again():
    module = network()
    flat = FlatParameters(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, fused=True)
    module(torch.randn(2, 1, 8, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    flat.require_attached()
    flat.attach_gradients()
    assert not flat.gradients.any()
    module(torch.randn(2, 1, 8, 8)).sum().backward()
    assert flat.gradients.any()


def test_tied_parameters_appear_once():
    assert list(FlatParameters(Tied()).shapes) == [
        *("one.weight", "one.bias", "other.bias", "head.weight", "head.bias")
    ]


@pytest.mark.parametrize("fault", ["moved", "replaced", "added"])
def test_parameters_that_leave_the_buffer_are_noticed(fault):
    module = network()
    flat = FlatParameters(module)
    if fault == "moved":
        module[3].bias.data = torch.zeros(4)
    elif fault == "replaced":
        module[3].bias = nn.Parameter(torch.zeros(4))
    else:
        module.extra = nn.Parameter(torch.zeros(4))
    with pytest.raises(SealedStateError):
        flat.require_attached()


def test_what_no_mechanism_covers_is_refused_by_name():
    with pytest.raises(PlanError, match="no parameters"):
        FlatParameters(network().requires_grad_(requires_grad=False))
    with pytest.raises(PlanError, match=r"0\.weight.*float16"):
        FlatParameters(network().half())
    mixed = network()
    mixed[3].double()
    with pytest.raises(PlanError, match=r"3\.weight.*float64.*float32"):
        FlatParameters(mixed)
    with pytest.raises(PlanError, match="no parameters"):
        FlatParameters(nn.ReLU())


def test_frozen_parameters_are_left_out_and_stay_where_they_are():
    module = network()
    bias = module[3].bias.requires_grad_(requires_grad=False)
    place = bias.data_ptr()
    flat = FlatParameters(module)
    assert "3.bias" not in flat.shapes
    assert flat.size == sum(p.numel() for p in module.parameters() if p is not bias)
    assert bias.data_ptr() == place
    flat.require_attached()
    flat.values.zero_()
    assert bool(bias.any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_have_the_dtype_of_the_parameters(dtype):
    flat = FlatParameters(network().to(dtype))
    flat.attach_gradients()
    assert flat.values.dtype == flat.gradients.dtype == dtype


def test_destroy_overwrites_the_modules_weights():
    module = network()
    flat = FlatParameters(module)
    flat.attach_gradients()
    gradients = flat.gradients.fill_(1.0)
    flat.destroy()
    assert not any(tensor.any() for tensor in module.parameters())
    assert not gradients.any()
    assert flat.gradients.numel() == 0
