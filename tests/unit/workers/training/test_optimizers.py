"""Optimisers, groups and schedules of a recipe."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from app.domain.errors import RunFailedError
from app.domain.recipes import ParameterGroup, TrainingRecipe
from workers.training.optimizers import Schedule, optimizer_of, share_of_rate


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def rates(schedule, warmup, steps):
    return [share_of_rate(schedule, warmup, step=step, steps=steps) for step in range(steps)]


@pytest.mark.parametrize("warmup", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("steps", [7, 30, 101])
def test_one_cycle_is_that_of_torch(warmup, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = OneCycleLR(
        optimizer,
        max_lr=1.0,
        total_steps=steps + 1,
        pct_start=warmup,
        anneal_strategy="linear",
        cycle_momentum=False,
    )
    expected = []
    for _ in range(steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    np.testing.assert_allclose(rates("one_cycle", warmup, steps), expected, rtol=1e-9)


def test_a_cosine_falls_along_half_a_cosine_after_a_linear_rise():
    shares = rates("cosine", 0.2, 10)
    assert shares[:2] == [0.5, 1.0]
    expected = [0.5 * (1 + math.cos(math.pi * part / 8)) for part in range(8)]
    np.testing.assert_allclose(shares[2:], expected)


def test_a_constant_rate_stays_after_its_warm_up():
    np.testing.assert_allclose(rates("constant", 0.4, 10), [0.25, 0.5, 0.75] + 7 * [1.0])
    assert rates("constant", 0.0, 5) == 5 * [1.0]


@pytest.mark.parametrize("schedule", ["one_cycle", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_every_rate_is_above_zero_and_at_most_the_highest(schedule, warmup, steps):
    assert all(0 < share <= 1 for share in rates(schedule, warmup, steps))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_groups_have_rates_and_decays_of_their_own_along_one_schedule(optimizer):
    recipe = TrainingRecipe(
        optimizer=optimizer,
        learning_rate=0.5,
        weight_decay=0.01,
        schedule="cosine",
        groups=(ParameterGroup("0.*", learning_rate=0.1), ParameterGroup("*.bias", None, 0.0)),
    )
    module = network()
    made = optimizer_of(module, recipe)
    schedule = Schedule(made, recipe, 10)
    schedule.begin(6)
    own, biases, rest = made.param_groups
    assert [id(p) for p in own["params"]] == [id(module[0].weight), id(module[0].bias)]
    assert [id(p) for p in biases["params"]] == [id(module[2].bias)]
    assert [id(p) for p in rest["params"]] == [id(module[2].weight)]
    np.testing.assert_allclose([g["lr"] for g in made.param_groups], [0.05, 0.25, 0.25])
    assert [g["weight_decay"] for g in made.param_groups] == [0.01, 0.0, 0.01]


def test_a_group_of_the_rest_is_left_out_if_it_is_empty():
    recipe = TrainingRecipe(groups=(ParameterGroup("*", 0.3),))
    assert len(optimizer_of(network(), recipe).param_groups) == 1


def test_a_group_that_names_nothing_is_an_error_that_says_so():
    recipe = TrainingRecipe(groups=(ParameterGroup("encoder.*", 0.3),))
    with pytest.raises(RunFailedError, match=r"encoder\.\*"):
        optimizer_of(network(), recipe)
