"""DP-SGD behind the seal: it opens where the group's guarantee meets the target."""

import pytest
import torch
from torch import nn

from app.accounting import dp_sgd
from app.domain.errors import PlanError, SealedStateError, TargetNotMetError
from app.domain.recipe import TrainingRecipe
from workers import sealed as module_under_test
from workers.noise import SecureNoise
from workers.sealed import Sealed

CPU = torch.device("cpu")
TARGET = {"epsilon": 8.0, "delta": 1e-5}
RECIPE = TrainingRecipe(learning_rate=0.5, momentum=0.0, batch_size=50, schedule="constant")
SETTING = {"noise_multiplier": 4.0, "sampling_rate": 0.05, "steps": 20}


def factory():
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def sealed_network(make=factory):
    return Sealed(make, device=CPU, **TARGET)


def train(sealed, digits, **changes):
    keywords = {"gradient_clip": 1.0, "group_size": 2, "noise": SecureNoise()} | SETTING | changes
    return sealed.train_privately(digits, RECIPE, **keywords)


def test_the_guarantee_is_that_of_the_steps_taken_and_opens(digits):
    sealed, seen = sealed_network(), []
    guarantee = train(sealed, digits, on_progress=lambda *progress: seen.append(progress))
    expected = dp_sgd.account(**SETTING, group_size=2)
    assert guarantee.epsilon(delta=1e-5) == expected.epsilon(delta=1e-5) <= 8.0
    assert seen == [(step, 20) for step in range(1, 21)]
    certified = sealed.open()
    assert certified.guarantee is guarantee
    assert certified.noisy_steps == 20


def test_a_group_that_is_too_large_stays_sealed(digits):
    sealed = sealed_network()
    train(sealed, digits, noise_multiplier=1.0, group_size=10)
    with pytest.raises(TargetNotMetError):
        sealed.open()


def test_a_network_that_is_not_fresh_cannot_be_trained_privately(digits):
    trained, loaded = sealed_network(), sealed_network()
    trained.train(digits, TrainingRecipe(), epochs=0.2)
    loaded.load({name: torch.zeros_like(t) for name, t in factory().state_dict().items()})
    for sealed in (trained, loaded):
        with pytest.raises(SealedStateError):
            train(sealed, digits)


def test_it_happens_once(digits):
    sealed = sealed_network()
    train(sealed, digits)
    for again in (
        lambda: train(sealed, digits),
        lambda: sealed.train(digits, RECIPE, epochs=1),
        lambda: sealed.load({}),
    ):
        with pytest.raises(SealedStateError):
            again()


def test_what_is_opened_cannot_be_fine_tuned(digits):
    sealed = sealed_network()
    train(sealed, digits)
    certified = sealed.open()
    before = certified.tensors()["0.weight"]
    with pytest.raises(SealedStateError, match="DP-SGD"):
        certified.fine_tune(digits, RECIPE, epochs=1)
    assert (certified.tensors()["0.weight"] == before).all()


def test_a_refused_architecture_is_named_and_spends_the_object(digits):
    sealed = sealed_network(lambda: nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10)))
    with pytest.raises(PlanError, match="BatchNorm1d"):
        train(sealed, digits)
    with pytest.raises(SealedStateError):
        sealed.open()


def test_an_exception_inside_carries_no_values_and_spends_the_weights(digits):
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, features):
            if len(features) > 3:
                raise ValueError(f"bad value {features}")
            return self.linear(features)

    sealed = sealed_network(Failing)
    weights = module_under_test._HELD[sealed].network.flat.values
    with pytest.raises(RuntimeError, match="ValueError in") as caught:
        train(sealed, digits, sampling_rate=0.5)
    assert "bad value" not in str(caught.value)
    assert caught.value.__context__ is None
    assert not weights.any()
