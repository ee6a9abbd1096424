"""Training by descent behind the seal: in float64, from a start that is counted."""

import numpy as np
import pytest
import torch
from torch import nn

from app.accounting.precision import grid_of
from app.domain.errors import SealedStateError
from workers.mechanisms.descent import Descent
from workers.noise.generators import SecureNoise
from workers.seal import sealed as module_under_test
from workers.seal.sealed import Sealed
from workers.training import noisy_phase
from workers.training.noisy_phase import RandomBatches

CPU = torch.device("cpu")
TARGET = {"epsilon": 1.0, "delta": 1e-5}
DESCENT = Descent(0.1, 0.01)


def factory():
    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def weights_of(sealed):
    return module_under_test._HELD[sealed].network.flat.values


def descend(sealed, digits, descent=DESCENT, on_progress=None, **changes):
    given = {"steps": 3, "noise": SecureNoise(), "start_std": 0.0} | changes
    sealed.train_by(
        lambda network, report: noisy_phase.descend(
            network, descent.step_, RandomBatches(digits, 100), on_progress=report, **given
        ),
        on_progress,
    )


def test_a_descent_needs_float64_and_releases_it(digits):
    sealed = Sealed(factory, device=CPU, dtype=torch.float64, **TARGET)
    descend(sealed, digits)
    sealed.retrained()
    assert {tensor.dtype for tensor in sealed.open().tensors().values()} == {
        np.dtype(np.float64),
        np.dtype(np.int64),
    }
    single = Sealed(factory, device=CPU, **TARGET)
    with pytest.raises(RuntimeError, match="training failed: ValueError"):
        descend(single, digits)
    with pytest.raises(SealedStateError):
        single.open()


def test_a_random_start_is_noise_on_the_public_grid_and_is_counted(digits):
    noise, seen = SecureNoise(), []
    sealed = Sealed(factory, device=CPU, dtype=torch.float64, **TARGET)
    weights = weights_of(sealed)
    descend(
        sealed,
        digits,
        Descent(1e-300, 0.0),  # stays where it starts
        steps=1,
        noise=noise,
        start_std=0.5,
        on_progress=lambda *_: seen.append(weights.clone()),
    )
    assert noise.drawn == {0.5: weights.numel()}
    assert (seen[0] / grid_of(0.5)).frac().abs().lt(1e-200).all()  # zero may have moved by 1e-300
    assert float(seen[0].std()) == pytest.approx(0.5, rel=0.2)
