"""DP-SGD as its accountant assumes it: noise, clip, steps, and no word about records."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from app.accounting.precision import grid_of
from app.domain.errors import LeaseLostError, ParameterError, PlanError
from app.domain.recipes import TrainingRecipe
from tests.support.insecure_noise import InsecureNoise
from workers.noise.generators import SecureNoise
from workers.training.dp_sgd import training as private
from workers.training.dp_sgd.training import PrivateTraining, train_privately
from workers.training.examples import classified
from workers.training.networks.network import Network

CPU = torch.device("cpu")
PLAIN = TrainingRecipe(
    learning_rate=0.5, momentum=0.0, weight_decay=0.0, schedule="constant", batch_size=50
)
RARELY = 1e-15  # a sampling rate at which 1000 records are taken once in 10^12 steps


def mlp():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(network, examples, recipe=PLAIN, **changes):
    keywords = {"noise": SecureNoise()} | {
        name: changes.pop(name) for name in ("noise", "on_progress") if name in changes
    }
    numbers = {
        "noise_multiplier": 1.0,
        "gradient_clip": 1.0,
        "sampling_rate": recipe.batch_size / len(examples),
        "steps": 10,
    } | changes
    train_privately(network, examples, recipe, PrivateTraining(**numbers), **keywords)


def moved(examples, recipe=PLAIN, **changes):
    """Train and return how far every weight went, in float64."""
    network = Network(mlp, device=CPU)
    start = network.flat.values.clone()
    train(network, examples, recipe, **changes)
    return (network.flat.values - start).double().numpy()


class NoNoise:
    name = "none"
    drawn = {}  # noqa: RUF012

    def add_(self, position, noise_std):
        pass


# The statistical tests below fail by chance with probability below 1e-8 each.


@pytest.mark.parametrize(("steps", "multiplier", "clip"), [(1, 2.0, 0.5), (25, 0.7, 3.0)])
def test_the_noise_is_that_of_the_accountant_also_where_samples_are_empty(
    digits, steps, multiplier, clip
):
    update = moved(
        digits, noise_multiplier=multiplier, gradient_clip=clip, sampling_rate=RARELY, steps=steps
    )
    std = 0.5 * multiplier * clip / 50 * math.sqrt(steps)
    assert stats.kstest(update, "norm", args=(0, std)).pvalue > 1e-8
    chi_square = float(np.square(update / std).sum())
    assert 1e-8 < stats.chi2.cdf(chi_square, len(update)) < 1 - 1e-8


def test_the_noise_is_divided_by_the_recipes_batch_and_not_by_the_sample(digits):
    for rate in (RARELY, 0.5, 1.0):
        update = moved(digits, noise_multiplier=1e4, sampling_rate=rate, steps=1)
        assert update.std() == pytest.approx(0.5 * 1e4 / 50, rel=0.12)  # 8 standard deviations


def test_the_update_without_noise_is_the_clipped_sum_over_the_batch_size(digits):
    network = Network(mlp, device=CPU, dtype=torch.float64)  # no kink of a ReLU between roundings
    reference = mlp().double()
    reference.load_state_dict(network.module.state_dict())
    total = 0
    for features, labels in map(dict.values, digits.in_order(1, device=CPU)):
        reference.zero_grad()
        nn.functional.cross_entropy(reference(features.double()), labels).backward()
        gradient = torch.cat([p.grad.flatten() for p in reference.parameters()])
        total = total + gradient * min(1.0, 0.1 / gradient.norm().item())
    expected = network.flat.values - 0.5 * total / 50
    train(network, digits, gradient_clip=0.1, sampling_rate=1.0, steps=1, noise=NoNoise())
    torch.testing.assert_close(network.flat.values, expected, rtol=1e-4, atol=1e-5)


def test_one_record_moves_the_weights_by_at_most_its_clip(digits):
    """A loud one moves them by just that, unless a network is certain of its label already."""
    features = digits.select(np.array([3])).inputs * 1e6
    loud = [classified(features, torch.tensor([label])) for label in range(0, 10, 3)]
    moves = [
        np.linalg.norm(
            moved(record, gradient_clip=0.1, sampling_rate=1.0, steps=1, noise=NoNoise())
        )
        for record in loud
    ]
    bound = 0.5 * 0.1 / 50
    assert max(moves) == pytest.approx(bound, rel=1e-5)


def gradient_of_one_step(examples, **changes):
    """What the optimiser sees of one step, and the standard deviations it drew from."""
    network, seen = Network(mlp, device=CPU), []
    noise = InsecureNoise(7, environment="test")
    network.load({name: np.zeros_like(t) for name, t in network.tensors().items()})

    def report(*_):
        seen.append(network.flat.gradients.clone())

    train(network, examples, steps=1, noise=noise, on_progress=report, **changes)
    return seen[0], noise.drawn


def test_a_step_is_noised_on_the_public_grid_and_cast_last(digits):
    recipe = TrainingRecipe(
        learning_rate=0.5, momentum=0.0, weight_decay=0.0, schedule="constant", batch_size=64
    )
    gradient, drawn = gradient_of_one_step(
        digits, recipe=recipe, noise_multiplier=3.0, gradient_clip=0.5, sampling_rate=0.3
    )
    assert drawn == {1.5: gradient.numel()}
    # Of float32 numbers below 16 grid steps keep 2^-20 apart; 64 divides without rounding.
    small = gradient[gradient.abs() < 2 / 64].double() * 64
    assert len(small) > gradient.numel() / 2
    assert (small / grid_of(1.5)).frac().eq(0).all()


def test_exactly_the_steps_asked_for_are_taken_and_told_by_number_alone(digits):
    seen = []
    for rate in (RARELY, 0.05):
        seen.clear()
        train(
            Network(mlp, device=CPU),
            digits,
            sampling_rate=rate,
            steps=7,
            on_progress=lambda *progress: seen.append(progress),
        )
        assert seen == [(step, 7) for step in range(1, 8)]


def test_momentum_weight_decay_and_schedule_see_the_noisy_gradient_alone(digits):
    recipe = TrainingRecipe(
        learning_rate=0.3, momentum=0.9, weight_decay=0.01, schedule="one_cycle", batch_size=50
    )
    network = Network(mlp, device=CPU)
    parameter = nn.Parameter(network.flat.values.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.3, momentum=0.9, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.3, total_steps=6, anneal_strategy="linear", cycle_momentum=False
    )
    noise = InsecureNoise(5, environment="test")
    for _ in range(5):
        drawn = torch.zeros(parameter.numel(), dtype=torch.float64)
        noise.add_(drawn, 2.0)
        parameter.grad = (drawn / 50).float()
        optimizer.step()
        schedule.step()
    train(
        network,
        digits,
        recipe,
        noise_multiplier=2.0,
        sampling_rate=RARELY,
        steps=5,
        noise=InsecureNoise(5, environment="test"),
    )
    torch.testing.assert_close(network.flat.values, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_large_samples_are_worked_through_in_parts(digits, monkeypatch):
    whole = moved_by_all(digits)
    monkeypatch.setattr("workers.training.dp_sgd.gradients.MOST_RECORDS", 37)
    torch.testing.assert_close(moved_by_all(digits), whole, rtol=1e-4, atol=1e-5)


def test_how_many_rows_a_pass_has_does_not_tell_how_many_records_there_are(digits, monkeypatch):
    tried = private.per_record_gradients
    wanted = []

    def watched(*args, **kwargs):
        wanted.append(kwargs["expected"])
        return tried(*args, **kwargs)

    monkeypatch.setattr(private, "per_record_gradients", watched)
    for count in (9, 10, 200):
        some = digits.select(np.arange(count))
        train(Network(mlp, device=CPU), some, sampling_rate=0.3, steps=1)
    assert wanted == [PLAIN.batch_size] * 3


def moved_by_all(digits):
    torch.manual_seed(1)
    network = Network(mlp, device=CPU)
    network.load({name: torch.sin(torch.arange(t.size).reshape(t.shape) * 1.0) * 0.1
                  for name, t in network.tensors().items()})  # fmt: skip
    train(network, digits, sampling_rate=1.0, steps=2, noise=NoNoise())
    return network.flat.values


def test_the_same_global_seed_gives_other_weights(digits):
    trained = []
    for _ in range(2):
        network = Network(mlp, device=CPU)
        network.load({name: t * 0 for name, t in network.tensors().items()})
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        train(network, digits, sampling_rate=RARELY)
        trained.append(network.flat.values)
    assert torch.isclose(*trained).float().mean() < 0.01


def test_nobody_knows_what_dropout_draws_for_a_row_of_a_pass(digits):
    """Which row a record gets depends on who else is in the sample."""
    trained = []
    for _ in range(2):
        network = Network(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 10)), device=CPU)
        network.load({name: t * 0 for name, t in network.tensors().items()})
        torch.manual_seed(0)
        train(network, digits, sampling_rate=1.0, steps=1, noise=NoNoise())
        trained.append(network.flat.values)
    assert not torch.allclose(*trained)


def test_digits_are_learned_under_moderate_noise(digits, held_out):
    network = Network(mlp, device=CPU)
    train(network, digits, steps=200, noise_multiplier=1.0)
    assert network.evaluate(held_out).score > 0.7  # 0.88 usually; chance is 0.1


def test_the_network_stays_plain_float32_and_in_its_buffer(digits):
    network = Network(mlp, device=CPU)
    train(network, digits, steps=2)
    network.flat.require_attached()
    assert network.flat.gradients.numel() == 0
    assert network.module.training
    for parameter in network.module.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is None
        assert not vars(parameter)
    network.train(digits, TrainingRecipe(), epochs=1)


def test_weights_that_diverge_do_not_end_the_training(digits):
    network = Network(mlp, device=CPU)
    seen = []
    train(
        network,
        digits,
        TrainingRecipe(learning_rate=1e38, schedule="constant"),
        steps=5,
        on_progress=lambda *progress: seen.append(progress),
    )
    assert seen[-1] == (5, 5)


def test_records_with_infinite_features_do_not_end_the_training(digits):
    features = digits.inputs.clone()
    features[::2] = torch.inf
    update = moved(classified(features, digits.tensors["target"]), steps=3)
    assert np.isfinite(update).all()


def test_cross_record_layers_are_refused_before_training(digits):
    network = Network(
        lambda: nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)), device=CPU
    )
    before = network.flat.values.clone()
    with pytest.raises(PlanError, match=r"'1' \(BatchNorm1d\)"):
        train(network, digits)
    assert torch.equal(network.flat.values, before)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 0.0},
        {"gradient_clip": -1.0},
        {"sampling_rate": 1.5},
        {"steps": 0},
        {"noise_multiplier": math.nan},
    ],
)
def test_parameters_out_of_range_are_refused(digits, change):
    with pytest.raises(ParameterError, match=next(iter(change))):
        train(Network(mlp, device=CPU), digits, **change)


def test_what_the_callback_raises_ends_the_training_and_leaves_the_module_plain(digits):
    network = Network(mlp, device=CPU)

    def stop(*_):
        raise LeaseLostError("another worker")

    with pytest.raises(LeaseLostError):
        train(network, digits, on_progress=stop)
    assert not any(vars(parameter) for parameter in network.module.parameters())


def test_sums_gradients_and_momentum_are_overwritten(digits, monkeypatch):
    network, kept = Network(mlp, device=CPU), []
    make = private.overwritten_afterwards

    def watched(optimizer, *others):
        kept.extend([optimizer, *others])
        return make(optimizer, *others)

    def report(step, steps):
        if step == steps:
            kept.append(network.flat.gradients)
            kept.extend(v for s in kept[0].state.values() for v in s.values() if v is not None)
            assert all(bool(tensor.any()) for tensor in kept[1:])
            assert kept[1].dtype == torch.float64

    monkeypatch.setattr(private, "overwritten_afterwards", watched)
    recipe = TrainingRecipe(learning_rate=0.1, momentum=0.9, batch_size=50)
    train(network, digits, recipe, on_progress=report)
    assert len(kept) >= 4
    assert not any(bool(tensor.any()) for tensor in kept[1:])
