"""The trial on random records refuses whatever lets one record's bits depend on another's."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from app.domain.errors import PlanError
from tests.support.networks import Computing
from tests.unit.workers.training.dp_sgd.test_gradients import attached, inputs_of, per_record
from workers.training.dp_sgd import gradients


def before(change):
    """Do something to the features before a layer sees them."""
    return Computing(lambda own, x: own.linear(change(x)), linear=nn.Linear(6, 3))


def across_records(own, features):
    """Attend as if a batch of records were a sequence."""
    keys = own.linear(features)
    return own.head(torch.softmax(keys @ keys.T, dim=1) @ features)


def behind_its_back(own, features):
    return own.linear(features) + features @ own.linear.weight.T


def reshaped(own, features):
    """Hide the records in another dimension from the layer behind it."""
    return own.linear(features.reshape(-1, 2)).reshape(len(features), 3, 3).sum(dim=1)


def transposed(own, features):
    return own.linear(features.reshape(-1, 3, 2).transpose(0, 1)).sum(dim=0)


class ChangedAfterwards(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.linear = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, features):
        hidden = self.first(features) * 1.0
        scores = self.linear(hidden.detach())
        hidden.mul_(2.0)
        return scores + self.linear(hidden)


class Counting(nn.Module):
    """Does something else every other time."""

    def __init__(self):
        super().__init__()
        self.calls, self.linear = 0, nn.Linear(6, 3)

    def forward(self, features):
        self.calls += 1
        return self.linear(features * (1 + self.calls % 2))


class SubclassedNorm(nn.BatchNorm1d):
    pass


def larger_when_loud(features):
    return features * 2 if features.abs().max() > 1e9 else features


def another_dtype(features):
    return features.double().float() if bool((features > 1e9).any()) else features


REFUSED = {
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), "BatchNorm1d"),
    "batch norm without statistics": (
        lambda: nn.Sequential(
            nn.BatchNorm1d(6, affine=False, track_running_stats=False), nn.Linear(6, 3)
        ),
        "BatchNorm1d",
    ),
    "subclass": (lambda: nn.Sequential(SubclassedNorm(6), nn.Linear(6, 3)), "SubclassedNorm"),
    "statistics": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 6)),
            nn.InstanceNorm1d(1, track_running_stats=True),
            nn.Flatten(),
            nn.Linear(6, 3),
        ),
        "running_mean",
    ),
    "mean of the batch": (lambda: before(lambda x: x - x.mean(dim=0).detach()), "mixes records"),
    "largest of the batch": (lambda: before(lambda x: x / x.abs().max().detach()), "mixes records"),
    "sorted by the batch": (lambda: before(lambda x: x.sort(dim=0).values), "records"),
    "neighbour": (lambda: before(lambda x: x + x.roll(1, dims=0)), "mixes records"),
    "a hair of the neighbour": (
        lambda: before(lambda x: x + 1e-3 * x.roll(1, dims=0)),
        "mixes records",
    ),
    "attention across records": (
        lambda: Computing(across_records, linear=nn.Linear(6, 6), head=nn.Linear(6, 3)),
        "records",
    ),
    "branch on the batch": (lambda: before(larger_when_loud), "looks at values"),
    "dtype by the batch": (lambda: before(another_dtype), "looks at values"),
    "number of a tensor": (lambda: before(lambda x: x * x.abs().max().item()), "looks at values"),
    "numpy": (lambda: before(lambda x: x * float(x.detach().numpy().max())), "looks at values"),
    "list": (lambda: before(lambda x: x * max(x.tolist()[0])), "looks at values"),
    "chosen by value": (
        lambda: before(lambda x: x[(x > -1e9).all(dim=1).nonzero().squeeze(1)]),
        "looks at values",
    ),
    "reshaping": (lambda: Computing(reshaped, linear=nn.Linear(2, 3)), "linear.weight"),
    "transposing": (lambda: Computing(transposed, linear=nn.Linear(2, 3)), "linear.weight"),
    "functional": (lambda: Computing(behind_its_back, linear=nn.Linear(6, 3)), "misses part"),
    "changed afterwards": (ChangedAfterwards, "in place"),
    "counting": (Counting, "mixes records|misses part|computes something else"),
    "places draw": (
        lambda: before(lambda x: functional.dropout(x, 0.5)),
        "draws random numbers",
    ),
    "recurrent": (
        lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.LSTM(3, 4, batch_first=True)),
        "more than one tensor",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_mix_records_are_refused_with_the_reason(name):
    torch.manual_seed(0)
    factory, words = REFUSED[name]
    module, flat = attached(factory())
    entering = per_record(module, flat, (6,))
    with pytest.raises(PlanError, match=words), entering:
        pass
    assert not any(layer._forward_hooks for layer in module.modules())


def test_a_layer_that_scales_gradients_by_how_often_a_batch_has_a_token_is_refused():
    torch.manual_seed(0)
    table = nn.Embedding(7, 5, scale_grad_by_freq=True)
    module, flat = attached(nn.Sequential(table, nn.Flatten(), nn.Linear(20, 3)))
    entering = per_record(module, flat, None)
    with pytest.raises(PlanError), entering:
        pass


def test_dropout_is_fine_and_torchs_generator_is_left_alone():
    layers = nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 3)
    module, flat = attached(nn.Sequential(*layers))
    entered = per_record(module, flat, (6,), expected=100)
    before = torch.get_rng_state()
    with entered as gradients:
        assert gradients.rows == 128
    assert torch.equal(before, torch.get_rng_state())
    assert layers[1].training


@pytest.mark.parametrize("certainty", [90.0, 96.0, 102.0])
def test_a_made_up_record_that_is_fitted_to_the_last_digit_of_float32_is_no_mixture(certainty):
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)
    module, flat = attached(nn.Sequential(*layers))
    with torch.no_grad():
        layers[2].weight.mul_(0.1)
        layers[2].bias[0] = certainty
    with per_record(module, flat, (6,), expected=100) as gradients:
        assert gradients.rows == 128


class LastBits(nn.Module):
    """Rounds as kernels do that treat some rows otherwise: only in rows beyond the third."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, features):
        place = torch.arange(len(features)).unsqueeze(1)
        return self.linear(features * torch.where(place > 3, 1 + 2.0**-20, 1.0))


def test_where_only_last_bits_depend_on_the_place_passes_get_so_few_rows_that_none_do():
    torch.manual_seed(0)
    module, flat = attached(LastBits())
    with per_record(module, flat, (6,), expected=50) as gradients:
        assert gradients.rows == 4


class Aligned(nn.Module):
    """Rounds as kernels do that ask where in memory a row begins."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, features):
        odd = torch.arange(len(features)).unsqueeze(1) % 2 == 1
        return self.linear(features * torch.where(odd, 1 + 2.0**-20, 1.0))


def test_where_last_bits_depend_on_every_other_place_a_pass_has_one_row():
    torch.manual_seed(0)
    module, flat = attached(Aligned())
    with per_record(module, flat, (6,), expected=50) as gradients:
        assert gradients.rows == 1


class Whisper(nn.Module):
    """Lets others change last bits alone."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, features):
        loud = features.nan_to_num().abs().amax() > 100
        return self.linear(features * torch.where(loud, 1 + 2.0**-20, 1.0))


def test_where_others_change_last_bits_a_pass_has_one_row():
    torch.manual_seed(0)
    module, flat = attached(Whisper())
    with per_record(module, flat, (6,), expected=50) as gradients:
        assert gradients.rows == 1


def test_the_trial_replaces_records_by_all_that_floats_can_be():
    some = {"inputs": inputs_of((6,), 4).abs() + 1, "target": torch.arange(4)}
    kept = gradients._kept(4)
    replaced = [each["inputs"] for each in gradients._with_others(some, kept)]
    assert len(replaced) == len(gradients._OTHERS)
    for each in replaced:
        assert torch.equal(each[kept], some["inputs"][kept])
    others = torch.stack([each[1] for each in replaced])
    assert others.isnan().any()
    assert others.isinf().any()
    assert (others == 0).any()
    assert (others[others.isfinite()] > 1e29).any()
