"""Gradients per record: right, clipped one by one, and refused where records mix."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from app.domain.errors import PlanError
from workers.training.flat import FlatParameters
from workers.training.per_record import per_record_gradients

CLIP = 0.25


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding="same"),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


class Scaled(nn.Module):
    """A layer with a parameter of its own, which Opacus has no rule for."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.offset = nn.Parameter(torch.tensor(0.5))

    def forward(self, features):
        return features * self.scale + self.offset


class Tied(nn.Module):
    """Uses one layer twice."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, features):
        return self.head(self.inner(self.inner(features).relu()))


def attached(module):
    flat = FlatParameters(module.train())
    flat.attach_gradients()
    return module, flat


def clipped_sum(module, features, labels, *, clip=CLIP):
    module, flat = attached(module)
    out = torch.zeros_like(flat.values)
    with per_record_gradients(module, flat, input_shape=features.shape[1:]) as gradients:
        gradients.add_clipped(features, labels, clip_norm=clip, out=out)
    return out


def clipped_one_by_one(module, features, labels, *, clip=CLIP):
    total = 0
    for feature, label in zip(features, labels, strict=True):
        module.zero_grad()
        cross_entropy(module(feature[None]), label[None]).backward()
        gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
        total = total + gradient * min(1.0, clip / gradient.norm().item())
    return total


@pytest.mark.parametrize(
    ("factory", "shape"),
    [
        (mlp, (6,)),
        (cnn, (1, 5, 5)),
        (Tied, (6,)),
        (lambda: nn.Sequential(Scaled(), nn.Dropout(0.0), nn.Linear(6, 3)), (6,)),
        (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), (6,)),
    ],
)
def test_the_sum_is_that_of_single_records_each_clipped(factory, shape):
    torch.manual_seed(3)
    module = factory()
    features, labels = (
        torch.randn(9, *shape) * torch.logspace(-3, 1, 9).view(-1, *[1] * len(shape)),
        torch.arange(9) % 3,
    )
    for clip in (1e-3, 0.5, 1e6):
        expected = clipped_one_by_one(module, features, labels, clip=clip)
        actual = clipped_sum(module, features, labels, clip=clip)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_one_record_adds_at_most_the_clip():
    torch.manual_seed(0)
    module, features, labels = mlp(), torch.randn(50, 6) * 100, torch.arange(50) % 3
    for record in range(50):
        alone = clipped_sum(module, features[[record]], labels[[record]])
        assert float(alone.double().norm()) <= CLIP


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 3e38])
def test_a_record_whose_gradient_is_not_finite_counts_as_zero_and_spoils_no_other(bad):
    torch.manual_seed(0)
    module, features, labels = mlp(), torch.randn(5, 6), torch.arange(5) % 3
    good = clipped_sum(module, features[[0, 1, 3, 4]], labels[[0, 1, 3, 4]])
    features[2] = bad
    torch.testing.assert_close(clipped_sum(module, features, labels), good)


def test_afterwards_the_module_is_plain(digits):
    module, flat = attached(nn.Sequential(Scaled(), nn.Linear(6, 3)))
    with per_record_gradients(module, flat, input_shape=(6,)) as gradients:
        gradients.add_clipped(
            torch.randn(4, 6), torch.zeros(4, dtype=torch.long), clip_norm=1, out=flat.values
        )
    flat.require_attached()
    for parameter in module.parameters():
        assert not vars(parameter)
    plain = set(vars(nn.Linear(1, 1)))
    for layer in module.modules():
        assert not layer._forward_hooks
        assert not layer._backward_hooks
        assert set(vars(layer)) <= plain | {"in_features", "out_features"}


def test_a_module_is_plain_after_a_failure_too():
    module, flat = attached(mlp())
    with (
        pytest.raises(RuntimeError, match="size"),
        per_record_gradients(module, flat, input_shape=(6,)),
    ):
        module(torch.randn(4, 6)) @ torch.ones(2)  # the forward leaves activations behind
    assert not any(vars(parameter) for parameter in module.parameters())
    assert not any("activations" in vars(layer) for layer in module.modules())


class Centred(nn.Module):
    """Mixes records without a parameter, a buffer, or a gradient that would show it."""

    def forward(self, features):
        return features - features.mean(dim=0, keepdim=True).detach()


class Reshaping(nn.Module):
    """Hides the records in another dimension from the layer behind it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, features):
        return self.linear(features.reshape(-1, 2)).reshape(len(features), 3, 3).sum(dim=1)


class Transposing(Reshaping):
    def forward(self, features):
        return self.linear(features.reshape(-1, 3, 2).transpose(0, 1)).sum(dim=0)


class Functional(nn.Module):
    """Uses a layer's weight behind the layer's back."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, features):
        return self.linear(features) + features @ self.linear.weight.T


class SubclassedNorm(nn.BatchNorm1d):
    pass


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        ([nn.BatchNorm1d(6)], r"'0' \(BatchNorm1d\)"),
        ([nn.Identity(), nn.BatchNorm1d(6, affine=False)], r"'1' \(BatchNorm1d\)"),
        ([nn.BatchNorm1d(6, track_running_stats=False)], "BatchNorm1d"),
        ([nn.BatchNorm1d(6, affine=False, track_running_stats=False)], "BatchNorm1d"),
        ([SubclassedNorm(6)], "SubclassedNorm"),
        ([nn.Unflatten(1, (1, 6)), nn.InstanceNorm1d(1, track_running_stats=True)], "Instance"),
        ([Centred()], r"mixes records where '1.weight'"),
        ([nn.Linear(6, 6), nn.ReLU(inplace=True)], "in-place"),
    ],
)
def test_layers_without_a_gradient_per_record_are_refused_by_name(layers, match):
    module, flat = attached(nn.Sequential(*layers, nn.Flatten(), nn.Linear(6, 3)))
    if isinstance(layers[0], Centred):
        module, flat = attached(nn.Sequential(Centred(), nn.Linear(6, 3)))
    with (
        pytest.raises(PlanError, match=match),
        per_record_gradients(module, flat, input_shape=(6,)),
    ):
        pass
    assert not any(vars(parameter) for parameter in module.parameters())


@pytest.mark.parametrize(
    ("factory", "match"),
    [(Reshaping, "linear.weight"), (Transposing, "linear.weight"), (Functional, "misses part")],
)
def test_networks_that_hide_records_from_a_layer_are_refused(factory, match):
    module, flat = attached(factory())
    with (
        pytest.raises(PlanError, match=match),
        per_record_gradients(module, flat, input_shape=(6,)),
    ):
        pass


def test_the_check_leaves_torchs_generator_alone():
    module, flat = attached(mlp())
    before = torch.get_rng_state()
    with per_record_gradients(module, flat, input_shape=(6,)) as gradients:
        assert gradients.records_at_once == 256
    assert torch.equal(before, torch.get_rng_state())


def test_large_networks_take_fewer_records_at_once():
    module, flat = attached(nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 3)))
    with per_record_gradients(module, flat, input_shape=(1000,)) as gradients:
        assert gradients.records_at_once == (1 << 26) // flat.size


def test_gradients_of_single_records_are_overwritten():
    module, flat = attached(mlp())
    kept = []
    with per_record_gradients(module, flat, input_shape=(6,)) as gradients:
        of = gradients._of

        def watched(*batch):
            parts = of(*batch)
            assert all(bool(part.any()) for part in parts)
            kept.extend(parts)
            return parts

        gradients._of = watched
        out = torch.zeros_like(flat.values)
        gradients.add_clipped(torch.randn(9, 6), torch.arange(9) % 3, clip_norm=CLIP, out=out)
    assert out.any()
    assert len(kept) == len(flat.shapes)
    assert not any(bool(part.any()) for part in kept)
