"""Gradients of single records: autograd's own, clipped one by one, whatever the layers."""

from fractions import Fraction

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from tests.support.networks import Computing
from workers.training.dp_sgd.capture import capturing
from workers.training.dp_sgd.contributions import Product, Whole, norms_of
from workers.training.dp_sgd.gradients import per_record_gradients
from workers.training.networks.flat import FlatParameters
from workers.training.networks.heads import LinearHead, RidgeHead
from workers.training.tasks.built_in import CLASSIFICATION, Classification

CLIP = 0.25
CLIPS = (1e-3, 0.5, 1e6)


class Scaled(nn.Module):
    """A layer without a rule, with a parameter of no dimension."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.offset = nn.Parameter(torch.tensor(0.5))

    def forward(self, features):
        return features * self.scale + self.offset


class TiedTokens(nn.Module):
    """A language model's usual tie: one matrix looks tokens up and scores them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 5, padding_idx=0)
        self.out = nn.Linear(5, 7, bias=False)
        self.out.weight = self.table.weight
        self.head = nn.Linear(7, 3)

    def forward(self, tokens):
        return self.head(self.out(self.table(tokens).tanh()).mean(dim=1))


def twice():
    return Computing(
        lambda own, x: own.head(own.inner(own.inner(x).relu())),
        inner=nn.Linear(6, 6),
        head=nn.Linear(6, 3),
    )


def attending():
    """A unit with layers inside: torch's own attention, records first."""
    return Computing(
        lambda own, x: own.head(own.attention(x, x, x, need_weights=False)[0].mean(dim=1)),
        attention=nn.MultiheadAttention(4, 2, batch_first=True),
        head=nn.Linear(4, 3),
    )


class Block(nn.Module):
    """Has a parameter beside its layers."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(4, 6) / 9)
        self.inner = nn.Linear(6, 6)

    def forward(self, features):
        return self.inner(features + self.position).relu()


class FrozenFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.first.requires_grad_(requires_grad=False)
        self.norm.bias.requires_grad_(requires_grad=False)
        self.head.bias.requires_grad_(requires_grad=False)

    def forward(self, features):
        return self.head(self.norm(self.first(features).relu()))


class Weighted(Classification):
    """Losses times made-up factors, one for each row."""

    def __init__(self, factors):
        super().__init__(CLASSIFICATION.spec)
        object.__setattr__(self, "factors", factors)

    def loss(self, module, batch):
        return super().loss(module, batch) * self.factors


def conv(*layers, size):
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, 3))


CASES = {
    "vectors": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (6,)),
    "in place": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
        (6,),
    ),
    "sequence, few places": (lambda: conv(nn.Linear(24, 24), nn.Tanh(), size=72), (3, 24)),
    "sequence, many places": (lambda: conv(nn.Linear(4, 4), nn.Tanh(), size=80), (20, 4)),
    "no bias": (lambda: nn.Sequential(nn.Linear(6, 3, bias=False)), (6,)),
    "convolution": (
        lambda: conv(nn.Conv2d(2, 4, 3, stride=2, padding=(1, 2)), nn.GroupNorm(2, 4), size=96),
        (2, 8, 9),
    ),
    "same padding, wide": (
        lambda: conv(nn.Conv2d(30, 31, (3, 2), padding="same", dilation=(1, 2)), size=124),
        (30, 2, 2),
    ),
    "convolution of sequences": (
        lambda: conv(nn.Conv1d(3, 4, 3, padding=1, dilation=2), nn.ReLU(), size=28),
        (3, 9),
    ),
    "grouped": (lambda: conv(nn.Conv2d(4, 4, 3, groups=2), size=36), (4, 5, 5)),
    "transposed": (lambda: conv(nn.ConvTranspose2d(2, 3, 2), size=75), (2, 4, 4)),
    "in space": (lambda: conv(nn.Conv3d(1, 2, 2), size=16), (1, 3, 3, 3)),
    "layer norm": (lambda: conv(nn.LayerNorm((2, 3)), size=6), (2, 3)),
    "rms norm": (lambda: nn.Sequential(nn.RMSNorm(6), nn.Linear(6, 3)), (6,)),
    "no rule": (lambda: nn.Sequential(Scaled(), nn.Dropout(0.0), nn.Linear(6, 3)), (6,)),
    "twice": (twice, (6,)),
    "tied": (TiedTokens, None),
    "attention": (attending, (5, 4)),
    "a part of its own": (lambda: conv(Block(), size=24), (4, 6)),
    "frozen": (FrozenFirst, (6,)),
    "linear head": (lambda: LinearHead(6, 3, rows=3, feature_norm=None, bias=0.5), (6,)),
    "ridge head": (lambda: RidgeHead(6, 3, feature_range=2.0), (6,)),
}  # fmt: skip


def inputs_of(shape, count, *, seed=3):
    generator = torch.Generator().manual_seed(seed)
    if shape is None:
        return torch.randint(0, 7, (count, 4), generator=generator)
    scales = torch.logspace(-3, 1, count).view(-1, *[1] * len(shape))
    return torch.randn(count, *shape, generator=generator) * scales


def batch(features, labels=None):
    target = torch.arange(len(features)) % 3 if labels is None else labels
    return {"inputs": features, "target": target}


def attached(module):
    return module.train(), FlatParameters(module)


def per_record(module, flat, shape, *, expected=9):
    return per_record_gradients(
        module,
        CLASSIFICATION,
        flat,
        probes=lambda count: batch(inputs_of(shape, count, seed=8)),
        expected=expected,
    )


def true_gradients(module, features, labels):
    """Return [n, size] of what torch.func says."""
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}

    def loss(values, feature, label):
        return cross_entropy(functional_call(module, values, (feature[None],)), label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(trained, features, labels)
    return torch.cat([each.reshape(len(labels), -1) for each in found.values()], dim=1).double()


def clipped_sum(module, flat, shape, features, labels, *, clip=CLIP, expected=9):
    with per_record(module, flat, shape, expected=expected) as gradients:
        return added(gradients, flat.size, shape, features, labels, clip=clip)


def added(gradients, size, shape, features, labels, *, clip=CLIP):
    rows, out = gradients.rows, torch.zeros(size, dtype=torch.float64)
    for start in range(0, len(labels), rows):
        some, own = features[start : start + rows], labels[start : start + rows]
        left = rows - len(own)
        filled = batch(
            torch.cat([some, inputs_of(shape, left, seed=1)]),
            torch.cat([own, torch.zeros(left, dtype=torch.int64)]),
        )
        gradients.add_clipped(filled, counted=len(own), clip_norm=clip, out=out)
    return out


@pytest.mark.parametrize("name", CASES)
def test_the_sum_is_that_of_single_records_each_clipped(name):
    torch.manual_seed(3)
    factory, shape = CASES[name]
    module, flat = attached(factory())
    features, labels = inputs_of(shape, 21), torch.arange(21) % 3
    true = true_gradients(module, features, labels)
    with per_record(module, flat, shape) as gradients:
        sums = {c: added(gradients, flat.size, shape, features, labels, clip=c) for c in CLIPS}
    for clip, actual in sums.items():
        expected = (true * (clip / true.norm(dim=1)).clamp(max=1.0).unsqueeze(1)).sum(dim=0)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * min(clip, 1.0))


@pytest.mark.parametrize("name", CASES)
def test_a_norm_is_that_of_the_gradient_that_is_added(name):
    torch.manual_seed(3)
    factory, shape = CASES[name]
    module, _ = attached(factory())
    with capturing(module) as capture:
        found = capture.contributions(CLASSIFICATION, batch(inputs_of(shape, 11)))
    wholes = torch.cat([part.whole().double() for part in found.values()], dim=1)
    norms = norms_of(found.values())
    torch.testing.assert_close(norms, wholes.norm(dim=1), rtol=1e-6, atol=1e-12)
    for record in range(11):
        scale = torch.zeros(11, dtype=torch.float64)
        scale[record] = 1.0
        for part in found.values():
            alone = torch.zeros(part.whole().shape[1], dtype=torch.float64)
            part.add_scaled(scale, alone)
            torch.testing.assert_close(alone, part.whole()[record].double(), rtol=1e-6, atol=1e-9)


def test_the_smaller_form_is_chosen():
    torch.manual_seed(0)
    for name, kind in (("sequence, few places", Product), ("sequence, many places", Whole)):
        factory, shape = CASES[name]
        module, _ = attached(factory())
        with capturing(module) as capture:
            found = capture.contributions(CLASSIFICATION, batch(inputs_of(shape, 5)))
        assert type(found["0.weight"]) is kind


def test_a_record_whose_places_cancel_is_scaled_down_so_far_that_rounding_stays_bounded():
    """Its norm says nothing of the numbers that are added up for it."""
    from workers.training.dp_sgd.gradients import scales

    inputs = torch.ones(1, 2, 8, dtype=torch.float64)
    outputs = torch.ones(1, 2, 8, dtype=torch.float64) * 2.0**20
    outputs[:, 1] *= -1
    cancelling = Product(inputs, outputs)
    assert cancelling.whole().abs().max() == 0
    scale = scales({"weight": cancelling}, clip_norm=1.0)
    assert 0 < float(scale * cancelling.spread()) <= 2.0**18
    assert float(scale * norms_of([cancelling])) <= 1.0


@pytest.mark.parametrize(("places", "columns"), [(2, 8), (3000, 1), (3, 1 << 22)])
def test_a_norm_is_never_below_what_rounding_could_hide_of_it(places, columns):
    """Sums of N terms are off by up to N 2^-53 times those of their sizes, in some order."""
    inputs = torch.ones(1, places, columns, dtype=torch.float64)
    outputs = torch.ones(1, places, 1, dtype=torch.float64)
    outputs[:, 1::2] *= -1
    product = Product(inputs, outputs)
    exact = (places % 2) * columns
    sizes = places**2 * columns  # (sum of |g||a|)^2
    hidden = (places**2 + columns + 1) * 2.0**-53 * sizes
    assert float(product.squared_norms()) >= exact + hidden


@pytest.mark.parametrize("name", ["vectors", "convolution", "sequence, few places", "tied"])
def test_one_record_adds_at_most_the_clip(name):
    torch.manual_seed(0)
    factory, shape = CASES[name]
    module, flat = attached(factory())
    features, labels = inputs_of(shape, 8), torch.arange(8) % 3
    if shape is not None:
        features = features * 100
    with per_record(module, flat, shape) as gradients:
        for record in range(8):
            alone = added(gradients, flat.size, shape, features[[record]], labels[[record]])
            assert sum(Fraction(entry) ** 2 for entry in alone.tolist()) <= Fraction(CLIP) ** 2


@pytest.mark.parametrize("name", ["vectors", "convolution", "sequence, few places"])
def test_one_record_changes_the_sum_by_at_most_what_is_accounted_for(name):
    """With it or without it; those behind it then stand in other places and passes."""
    torch.manual_seed(0)
    factory, shape = CASES[name]
    module, flat = attached(factory())
    features, labels = inputs_of(shape, 50) * 30, torch.arange(50) % 3
    allowed = Fraction(CLIP) * (1 + Fraction(50, 2**25))
    with per_record(module, flat, shape) as gradients:
        whole = added(gradients, flat.size, shape, features, labels)
        for record in (0, 17, 49):
            rest = torch.arange(50) != record
            without = added(gradients, flat.size, shape, features[rest], labels[rest])
            change = [
                Fraction(one) - Fraction(other)
                for one, other in zip(whole.tolist(), without.tolist(), strict=True)
            ]
            assert sum(entry**2 for entry in change) <= allowed**2


def test_rows_that_do_not_count_add_exactly_nothing():
    torch.manual_seed(0)
    factory, shape = CASES["convolution"]
    module, flat = attached(factory())
    features, labels = inputs_of(shape, 16), torch.arange(16) % 3
    sums = []
    with per_record(module, flat, shape) as gradients:
        for seed in (1, 2):
            out = torch.zeros(flat.size, dtype=torch.float64)
            rows = torch.cat([features[:5], inputs_of(shape, gradients.rows - 5, seed=seed)])
            some = batch(rows, labels[: gradients.rows])
            gradients.add_clipped(some, counted=5, clip_norm=CLIP, out=out)
            sums.append(out)
    assert torch.equal(*sums)
    assert sums[0].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 3e38])
@pytest.mark.parametrize("name", ["vectors", "convolution"])
def test_a_record_whose_gradient_is_not_finite_counts_as_zero_and_spoils_no_other(name, bad):
    torch.manual_seed(0)
    factory, shape = CASES[name]
    module, flat = attached(factory())
    features, labels = inputs_of(shape, 5), torch.arange(5) % 3
    rest = [0, 1, 3, 4]
    good = clipped_sum(module, flat, shape, features[rest], labels[rest])
    features[2] = bad
    spoiled = clipped_sum(module, flat, shape, features, labels)
    if bad == 3e38:  # a gradient of some size or none
        assert spoiled.isfinite().all()
        assert (spoiled - good).norm() <= CLIP * (1 + 1e-6)
    else:
        torch.testing.assert_close(spoiled, good)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["vectors", "convolution", "sequence, few places", "tied"])
def test_a_row_that_does_not_count_adds_nothing_where_its_gradient_is_not_finite(name, bad):
    """Whether there are such rows depends on how many are in the sample."""
    torch.manual_seed(0)
    factory, shape = CASES[name]
    module, flat = attached(factory())
    sums = []
    with per_record(module, flat, shape) as gradients:
        for spoiled in (False, True):
            some = batch(inputs_of(shape, gradients.rows))
            weight = torch.ones(gradients.rows)
            weight[5:] = bad if spoiled else 1.0
            gradients._task = Weighted(weight)
            out = torch.zeros(flat.size, dtype=torch.float64)
            gradients.add_clipped(some, counted=5, clip_norm=CLIP, out=out)
            sums.append(out)
    assert torch.equal(*sums)
    assert sums[0].any()


@pytest.mark.parametrize("name", ["vectors", "no rule", "tied", "attention", "frozen"])
def test_afterwards_the_module_is_plain(name):
    factory, shape = CASES[name]
    module, flat = attached(factory())
    before = {path: set(vars(layer)) for path, layer in module.named_modules()}
    clipped_sum(module, flat, shape, inputs_of(shape, 4), torch.arange(4) % 3)
    flat.require_attached()
    assert not any(vars(parameter) for parameter in module.parameters())
    for path, layer in module.named_modules():
        assert not layer._forward_hooks
        assert set(vars(layer)) == before[path]


def test_a_module_is_plain_after_a_failure_too():
    factory, shape = CASES["vectors"]
    module, flat = attached(factory())
    with pytest.raises(RuntimeError, match="size"), per_record(module, flat, shape):
        module(torch.randn(4, 6)) @ torch.ones(2)
    assert not any(layer._forward_hooks for layer in module.modules())


def test_passes_have_rows_for_the_usual_sample_and_fewer_in_large_networks():
    factory, shape = CASES["vectors"]
    for expected, rows in ((1, 4), (100, 128), (10_000, 256)):
        module, flat = attached(factory())
        with per_record(module, flat, shape, expected=expected) as gradients:
            assert gradients.rows == rows
    module, flat = attached(nn.Sequential(nn.Linear(400, 400), nn.Linear(400, 3)))
    with per_record(module, flat, (400,), expected=100) as gradients:
        assert gradients.rows == 32


def test_what_gradients_are_made_of_is_overwritten():
    factory, shape = CASES["convolution"]
    module, flat = attached(factory())
    kept = []
    with per_record(module, flat, shape) as gradients:
        contributions = gradients._capture.contributions

        def watched(task, some):
            found = contributions(task, some)
            kept.extend(rows for part in found.values() for rows in part.rows)
            assert all(bool(rows.any()) for rows in kept)
            return found

        gradients._capture.contributions = watched
        out = torch.zeros(flat.size, dtype=torch.float64)
        some = batch(inputs_of(shape, gradients.rows))
        gradients.add_clipped(some, counted=gradients.rows, clip_norm=CLIP, out=out)
    assert out.any()
    assert len(kept) >= 4
    assert not any(bool(rows.any()) for rows in kept)
