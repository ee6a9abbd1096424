"""The loss-threshold attack: its area under the curve, on known losses and on a real network."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from app.domain.errors import RunFailedError
from app.domain.recipes.recipe import TrainingRecipe
from workers.training.membership_attack import loss_threshold_auc, membership_auc, record_losses
from workers.training.networks.network import Network

CPU = torch.device("cpu")


def auc(members, others):
    return loss_threshold_auc(members=np.array(members, float), others=np.array(others, float))


@pytest.mark.parametrize(
    ("members", "others", "expected"),
    [
        ([0.1, 0.2], [0.3, 0.4, 0.5], 1.0),
        ([0.3, 0.4, 0.5], [0.1, 0.2], 0.0),
        ([1.0, 1.0], [1.0, 1.0, 1.0], 0.5),
        ([0.1, 0.5], [0.3], 0.5),
        ([0.1, 0.3], [0.3], 0.75),
        ([0.1], [np.inf, np.nan], 1.0),
        ([np.nan], [np.inf], 0.5),
    ],
)
def test_known_losses(members, others, expected):
    assert auc(members, others) == expected


def test_it_is_the_area_under_the_roc_curve_ties_included():
    generator = np.random.default_rng(0)
    members, others = generator.integers(0, 20, 70), generator.integers(5, 25, 130)
    expected = roc_auc_score([1] * 70 + [0] * 130, -np.concatenate([members, others]))
    assert auc(members, others) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("members", "others"), [([], [1.0]), ([1.0], [])])
def test_nothing_to_compare_is_an_error(members, others):
    with pytest.raises(RunFailedError):
        auc(members, others)


def network():
    return Network(
        lambda: nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)),
        device=CPU,
    )


def test_losses_are_per_record_in_order_and_leave_the_network_as_it_was(digits, monkeypatch):
    attacked = network()
    before = attacked.tensors()
    monkeypatch.setattr("workers.training.membership_attack.EVALUATION_BATCH", 300)
    losses = record_losses(attacked, digits)
    assert losses.shape == (1000,)
    assert losses.mean() == pytest.approx(attacked.evaluate(digits).mean_loss, rel=1e-5)
    alone = record_losses(attacked, digits.select(np.array([777])))
    assert losses[777] == pytest.approx(alone[0], rel=1e-5)
    assert attacked.module.training
    after = attacked.tensors()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_an_overfitted_network_gives_its_training_records_away(digits, held_out):
    attacked = network()
    members = digits.select(np.arange(100))
    assert 0.35 < membership_auc(attacked, forgotten=members, held_out=held_out) < 0.65
    attacked.train(members, TrainingRecipe(batch_size=20), epochs=40)
    assert membership_auc(attacked, forgotten=members, held_out=held_out) > 0.75
