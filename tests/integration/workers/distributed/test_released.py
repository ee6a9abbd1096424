"""What several processes release is distributed as what one releases, and tells as little.

Two worlds that differ as far as they may start at both ends of the clipping ball; an attacker sees
many releases of each. All draws are the service's own, so tests fail by chance; each with
probability below 1e-6.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from app.accounting import gradient_clipping
from tests.support.attacking import FAILURE, mu_lower_bound
from tests.support.processes import together
from workers.distributed.execution import Elsewhere
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.noise.generators import SecureNoise
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network
from workers.training.noisy_phase import RandomBatches, run_noisy_phase
from workers.training.team import ALONE

CPU = torch.device("cpu")
TARGET = {"epsilon": 12.0, "delta": 1e-5}
CLIPS = {"initial_clip": 1.0, "gradient_clip": 0.1, "learning_rate": 0.5, "weight_decay": 0.2}
STEPS = 2
FORM = InputForm(shape=(5,))
TRIALS = 300
WORLDS = (1, -1)


def factory():
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def records():
    generator = np.random.default_rng(3)
    return Examples(
        {
            "inputs": torch.from_numpy(generator.normal(size=(12, 5)).astype(np.float32)),
            "target": torch.from_numpy(generator.integers(3, size=12)),
        },
        FORM,
    )


def released(team, noise_std):
    """All releases in the frame, [worlds, trials, weights], in the leading process."""
    seen = records() if team.leads else Elsewhere(12, FORM)
    frame = ReferenceFrame.of(factory)
    rule = GradientClipping(**CLIPS, noise_std=noise_std, steps=STEPS)
    plain = Network(factory, device=CPU)
    on = frame.on(plain.flat)
    noise = SecureNoise()
    found = torch.zeros(len(WORLDS), TRIALS, plain.flat.size, dtype=torch.float64)
    network = Network(factory, device=CPU, team=team)
    for world, sign in enumerate(WORLDS):
        # Far outside of the ball: clipping leaves its two ends.
        on.weights_at(torch.full((plain.flat.size,), sign * 9.0).double(), out=plain.flat.held)
        start = plain.tensors()
        for trial in range(TRIALS):
            network.load(start if team.leads else None)
            run_noisy_phase(
                network,
                rule,
                RandomBatches(seen, 12),
                frame=frame,
                noise=noise,
                **TARGET,
                on_progress=lambda *_: None,
            )
            network.flat.collect(plain.flat if team.leads else None) if team.devices > 1 else (
                plain.load(network.tensors())
            )
            if team.leads:
                found[world, trial] = on.position_of(plain.flat.held)
    return found.numpy() if team.leads else None


@pytest.fixture(scope="module")
def noise_std():
    return gradient_clipping.calibrate(**TARGET, **CLIPS, steps=STEPS)


@pytest.fixture(scope="module")
def of_one(noise_std):
    return released(ALONE, noise_std)


@pytest.mark.nightly  # a thousand releases
@pytest.mark.parametrize("devices", [2, 3])
def test_releases_of_several_processes_pass_the_audits_of_one(devices, noise_std, of_one):
    of_several, *_ = together(released, noise_std, devices=devices)
    size = of_one.shape[-1]
    along = np.ones(size) / size**0.5
    claimed = gradient_clipping.account(**CLIPS, noise_std=noise_std, steps=STEPS).mu
    for found in (of_one, of_several):
        one, other = found @ along
        bound = mu_lower_bound(one, other)
        assert 0.1 < bound <= claimed
    tests = size * len(WORLDS) * 2
    for world, _ in enumerate(WORLDS):
        one, several = of_one[world], of_several[world]
        for coordinate in range(size):
            same = stats.ks_2samp(one[:, coordinate], several[:, coordinate])
            assert same.pvalue > FAILURE / tests, (world, coordinate)
        # Noise of two processes must not go together: no pair of coordinates is correlated.
        correlations = np.corrcoef((several - several.mean(axis=0)).T)
        largest = np.abs(correlations - np.eye(size)).max()
        assert largest < stats.norm.isf(FAILURE / size**2 / 2) / TRIALS**0.5
