"""Gradients per record: right, clipped one by one, and refused where records mix."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from app.domain.errors import PlanError
from workers.tasks.classification import CLASSIFICATION
from workers.training.flat import FlatParameters
from workers.training.per_record import _add_rounded, _unit_of, per_record_gradients

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


def batch(features, labels=None):
    target = torch.zeros(len(features), dtype=torch.int64) if labels is None else labels
    return {"inputs": features, "target": target}


def per_record(module, flat, *, shape=(6,)):
    probe = batch(torch.rand(5, *shape))
    return per_record_gradients(module, CLASSIFICATION, flat, probe=probe)


def attached(module):
    flat = FlatParameters(module.train())
    flat.attach_gradients()
    return module, flat


def clipped_sum(module, features, labels, *, clip=CLIP, chunk=None):
    module, flat = attached(module)
    out = torch.zeros_like(flat.values, dtype=torch.float64)
    with per_record(module, flat, shape=features.shape[1:]) as gradients:
        for start in range(0, len(labels), chunk or len(labels)):
            some = slice(start, start + (chunk or len(labels)))
            gradients.add_clipped(batch(features[some], labels[some]), clip_norm=clip, out=out)
    return out


def clipped_one_by_one(module, features, labels, *, clip=CLIP):
    total = 0
    for feature, label in zip(features, labels, strict=True):
        module.zero_grad()
        cross_entropy(module(feature[None]), label[None]).backward()
        gradient = torch.cat([p.grad.flatten() for p in module.parameters()]).double()
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
        rounded_away = 9 * clip * 2.0**-33  # half a unit of each record
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6 + rounded_away)


def test_one_record_adds_at_most_the_clip():
    torch.manual_seed(0)
    module, features, labels = mlp(), torch.randn(50, 6) * 100, torch.arange(50) % 3
    for record in range(50):
        alone = clipped_sum(module, features[[record]], labels[[record]])
        assert sum(Fraction(entry) ** 2 for entry in alone.tolist()) <= Fraction(CLIP) ** 2


@pytest.mark.parametrize("clip", [1e-3, 0.25, 0.3, 7.0])
def test_changing_one_record_changes_the_sum_by_at_most_the_clip_whatever_the_chunks(clip):
    """A record that does not count stands for the one that is not there."""
    torch.manual_seed(0)
    module, features, labels = mlp(), torch.randn(50, 6) * 100, torch.arange(50) % 3
    for record in (0, 17, 49):
        without = features.clone()
        without[record] = torch.nan
        for chunk in (50, 16, 7, 1):
            whole = clipped_sum(module, features, labels, clip=clip, chunk=chunk)
            rest = clipped_sum(module, without, labels, clip=clip, chunk=chunk)
            change = [
                Fraction(a) - Fraction(b)
                for a, b in zip(whole.tolist(), rest.tolist(), strict=True)
            ]
            assert sum(entry**2 for entry in change) <= Fraction(clip) ** 2


def test_the_sum_is_exact_in_any_order():
    """The same gradients, added in parts and backwards, make the same bits."""
    torch.manual_seed(0)
    part = torch.randn(300, 5000) * torch.logspace(-6, 0, 300).unsqueeze(1)
    units, unit = torch.full((300, 1), 1e9, dtype=torch.float64), 2.0**-34
    sums = torch.zeros(3, 5000, dtype=torch.float64)
    _add_rounded(part, units, unit, sums[0])
    _add_rounded(part.flip(0), units, unit, sums[1])
    for some in torch.split(part, 37):
        _add_rounded(some, units[: len(some)], unit, sums[2])
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])
    exact = (part.double() * units).round().sum(dim=0) * unit
    assert torch.equal(sums[0], exact)


@pytest.mark.parametrize("clip", [1e-9, 0.25, 0.3, 1.0, 1e6])
def test_a_clip_is_two_to_the_32_to_33_units_of_a_power_of_two(clip):
    unit = _unit_of(clip)
    assert 2**32 <= clip / unit < 2**33
    assert math.frexp(unit)[0] == 0.5


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 3e38])
def test_a_record_whose_gradient_is_not_finite_counts_as_zero_and_spoils_no_other(bad):
    torch.manual_seed(0)
    module, features, labels = mlp(), torch.randn(5, 6), torch.arange(5) % 3
    good = clipped_sum(module, features[[0, 1, 3, 4]], labels[[0, 1, 3, 4]])
    features[2] = bad
    torch.testing.assert_close(clipped_sum(module, features, labels), good)


def test_afterwards_the_module_is_plain(digits):
    module, flat = attached(nn.Sequential(Scaled(), nn.Linear(6, 3)))
    out = torch.zeros(flat.size, dtype=torch.float64)
    with per_record(module, flat) as gradients:
        gradients.add_clipped(batch(torch.randn(4, 6)), clip_norm=1, out=out)
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
        per_record(module, flat),
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
        per_record(module, flat),
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
        per_record(module, flat),
    ):
        pass


def test_the_check_leaves_torchs_generator_alone():
    module, flat = attached(mlp())
    entered = per_record(module, flat)
    before = torch.get_rng_state()
    with entered as gradients:
        assert gradients.records_at_once == 256
    assert torch.equal(before, torch.get_rng_state())


def test_large_networks_take_fewer_records_at_once():
    module, flat = attached(nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 3)))
    with per_record(module, flat, shape=(1000,)) as gradients:
        assert gradients.records_at_once == (1 << 26) // flat.size


def test_gradients_of_single_records_are_overwritten():
    module, flat = attached(mlp())
    kept = []
    with per_record(module, flat) as gradients:
        of = gradients._of

        def watched(some):
            parts = of(some)
            assert all(bool(part.any()) for part in parts)
            kept.extend(parts)
            return parts

        gradients._of = watched
        out = torch.zeros_like(flat.values, dtype=torch.float64)
        records = batch(torch.randn(9, 6), torch.arange(9) % 3)
        gradients.add_clipped(records, clip_norm=CLIP, out=out)
    assert out.any()
    assert len(kept) == len(flat.shapes)
    assert not any(bool(part.any()) for part in kept)
