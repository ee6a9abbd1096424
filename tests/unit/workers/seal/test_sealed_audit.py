"""The audit's figure stays behind the seal until the target is met."""

import numpy as np
import pytest
import torch
from torch import nn

from app.accounting import gradient_clipping as accountant
from app.domain.errors import RunFailedError, SealedStateError, TargetNotMetError
from app.domain.recipes.recipe import TrainingRecipe
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.noise.generators import SecureNoise
from workers.seal import sealed as module_under_test
from workers.seal.sealed import Sealed
from workers.training.feeds import RandomBatches
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network

CPU = torch.device("cpu")
TARGET = {"epsilon": 1.0, "delta": 1e-5}
SETTING = {"initial_clip": 5.0, "gradient_clip": 2.0, "learning_rate": 0.01, "weight_decay": 50.0}
OVERFIT = TrainingRecipe(batch_size=20)


def factory():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def sealed_network():
    return Sealed(factory, device=CPU, **TARGET)


def unlearn(sealed, retain):
    noise_std = accountant.calibrate(**TARGET, **SETTING, steps=4)
    sealed.unlearn(
        GradientClipping(**SETTING, noise_std=noise_std, steps=4),
        RandomBatches(retain, 100),
        frame=ReferenceFrame.of(factory),
        noise=SecureNoise(),
    )


@pytest.fixture
def forgotten(digits):
    return digits.select(np.arange(100))


@pytest.fixture
def start(forgotten):
    """Weights that know the forgotten records by heart."""
    network = Network(factory, device=CPU)
    network.train(forgotten, OVERFIT, epochs=40)
    return network.tensors()


def test_the_figure_of_the_start_comes_out_with_the_certified_weights_alone(
    digits, start, forgotten, held_out
):
    sealed = sealed_network()
    sealed.load(start)
    assert sealed.audit(start, forgotten=forgotten, held_out=held_out) is None
    kept = module_under_test._HELD[sealed].auc_before
    assert kept > 0.75
    assert not any("auc" in name for name in dir(sealed))
    assert str(kept) not in f"{sealed!r} {sealed}"
    with pytest.raises(TargetNotMetError):
        sealed.open()
    unlearn(sealed, digits)
    certified = sealed.open()
    assert certified.auc_before == kept
    assert 0.3 < certified.membership_auc(forgotten=forgotten, held_out=held_out) < 0.7


def test_without_an_audit_there_is_no_figure(digits):
    sealed = sealed_network()
    unlearn(sealed, digits)
    assert sealed.open().auc_before is None


def test_the_start_is_attacked_without_touching_what_is_held(digits, start, forgotten, held_out):
    sealed = sealed_network()
    before = module_under_test._HELD[sealed].network.tensors()
    sealed.audit(start, forgotten=forgotten, held_out=held_out)
    after = module_under_test._HELD[sealed].network.tensors()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    sealed.train(digits, TrainingRecipe(), epochs=1)
    sealed.retrained()  # it was still fresh
    assert sealed.open().auc_before > 0.75


def test_what_was_attacked_is_overwritten(monkeypatch, start, forgotten, held_out):
    attacked = []
    measure = module_under_test.membership_auc

    def watch(network, **records):
        attacked.append(network)
        return measure(network, **records)

    monkeypatch.setattr(module_under_test, "membership_auc", watch)
    sealed = sealed_network()
    sealed.audit(start, forgotten=forgotten, held_out=held_out)
    (other,) = attacked
    assert other is not module_under_test._HELD[sealed].network
    assert not other.flat.values.any()


def test_an_audit_after_the_target_or_of_nothing_is_refused(digits, start, forgotten, held_out):
    sealed = sealed_network()
    unlearn(sealed, digits)
    with pytest.raises(SealedStateError):
        sealed.audit(start, forgotten=forgotten, held_out=held_out)
    sealed = sealed_network()
    with pytest.raises(RunFailedError):
        sealed.audit(start, forgotten=forgotten.select(np.arange(0)), held_out=held_out)
    with pytest.raises(SealedStateError):
        sealed.open()


def test_an_error_inside_shows_no_record(forgotten, held_out):
    sealed = Sealed(lambda: nn.Linear(64, 3), device=CPU, **TARGET)
    start = Network(lambda: nn.Linear(64, 3), device=CPU).tensors()
    with pytest.raises(RuntimeError, match="the audit failed") as caught:
        sealed.audit(start, forgotten=forgotten, held_out=held_out)
    assert "Target" not in str(caught.value)
    assert caught.value.__context__ is None
