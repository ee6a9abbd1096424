"""DP-SGD behind the seal: it opens where the group's guarantee meets the target."""

import pytest
import torch
from torch import nn

from app.accounting import dp_sgd
from app.domain.errors import PlanError, SealedStateError, TargetNotMetError
from app.domain.recipes import TrainingRecipe
from app.planning.mechanisms.dp_sgd import DpSgd
from workers.mechanisms.dp_sgd import Unchanged
from workers.noise.generators import SecureNoise
from workers.seal import sealed as module_under_test
from workers.seal.sealed import Sealed
from workers.training.dp_sgd.training import PrivateTraining, train_privately
from workers.training.noisy_phase import RandomBatches

CPU = torch.device("cpu")
TARGET = {"epsilon": 8.0, "delta": 1e-5}
RECIPE = TrainingRecipe(learning_rate=0.5, momentum=0.0, batch_size=50, schedule="constant")
SETTING = {"noise_multiplier": 4.0, "sampling_rate": 0.05, "steps": 20}


def factory():
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def sealed_network(make=factory):
    return Sealed(make, device=CPU, **TARGET)


def train(sealed, digits, *, on_progress=None, **changes):
    training = PrivateTraining(**({"gradient_clip": 1.0} | SETTING | changes))
    sealed.train_by(
        lambda network, report: train_privately(
            network, digits, RECIPE, training, noise=SecureNoise(), on_progress=report
        ),
        on_progress,
    )


def unlearn(sealed, digits, *, group_size, **changes):
    mechanism = Unchanged(DpSgd(**{**SETTING, **changes, "group_size": group_size}))
    feed = RandomBatches(digits, 50)
    return sealed.unlearn(mechanism, feed, frame=None, noise=SecureNoise())


def test_the_group_guarantee_opens_it_without_a_step_or_a_change(digits):
    sealed, seen = sealed_network(), []
    train(sealed, digits, on_progress=lambda *progress: seen.append(progress))
    assert seen == [(step, 20) for step in range(1, 21)]
    with pytest.raises(TargetNotMetError):
        sealed.open()
    before = module_under_test._HELD[sealed].network.tensors()
    guarantee = unlearn(sealed, digits, group_size=2)
    expected = dp_sgd.account(**SETTING, group_size=2)
    assert guarantee.epsilon(delta=1e-5) == expected.epsilon(delta=1e-5) <= 8.0
    certified = sealed.open()
    assert certified.noisy_steps == 0
    assert all((before[name] == tensor).all() for name, tensor in certified.tensors().items())


def test_a_group_that_is_too_large_stays_sealed(digits):
    sealed = sealed_network()
    train(sealed, digits, noise_multiplier=1.0)
    with pytest.raises(TargetNotMetError, match="so many records"):
        unlearn(sealed, digits, group_size=10, noise_multiplier=1.0)
    with pytest.raises(SealedStateError):
        sealed.open()


def test_training_anew_is_a_retraining(digits):
    sealed = sealed_network()
    train(sealed, digits)
    sealed.retrained()
    assert sealed.open().guarantee.epsilon(delta=1e-9) == 0


def test_a_network_that_is_not_fresh_cannot_be_trained_privately(digits):
    trained, loaded, twice = sealed_network(), sealed_network(), sealed_network()
    trained.train(digits, TrainingRecipe(), epochs=0.2)
    loaded.load({name: torch.zeros_like(t) for name, t in factory().state_dict().items()})
    train(twice, digits)
    for sealed in (trained, loaded, twice):
        with pytest.raises(SealedStateError):
            train(sealed, digits)


def test_a_refused_architecture_is_named_and_spends_the_object(digits):
    sealed = sealed_network(lambda: nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10)))
    with pytest.raises(PlanError, match="BatchNorm1d"):
        train(sealed, digits)
    with pytest.raises(SealedStateError):
        sealed.open()


def test_an_exception_inside_carries_no_values_and_spends_the_weights(digits):
    class Failing(nn.Module):
        armed = False  # until records were seen

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, features):
            if Failing.armed:
                raise ValueError(f"bad value {features}")
            return self.linear(features)

    sealed = sealed_network(Failing)
    weights = module_under_test._HELD[sealed].network.flat.values
    with pytest.raises(RuntimeError, match="ValueError in") as caught:
        train(
            sealed,
            digits,
            sampling_rate=0.5,
            on_progress=lambda *_: setattr(Failing, "armed", True),
        )
    assert "bad value" not in str(caught.value)
    assert caught.value.__context__ is None
    assert not weights.any()
