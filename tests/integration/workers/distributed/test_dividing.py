"""Two and three processes take the steps that one takes, on digits."""

import os
import signal
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import nn

from app.accounting import gradient_clipping, model_clipping
from app.domain.errors import ProcessLostError, RunFailedError
from app.domain.recipes import TrainingRecipe
from tests.support.insecure_noise import InsecureNoise
from tests.support.processes import launched, together
from workers.distributed.execution import Elsewhere
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.mechanisms.model_clipping import ModelClipping
from workers.mechanisms.output_perturbation import OutputPerturbation
from workers.noise.generators import SecureNoise
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network
from workers.training.noisy_phase import RandomBatches, run_noisy_phase
from workers.training.team import ALONE, Team

CPU = torch.device("cpu")
TARGET = {"epsilon": 1.0, "delta": 1e-5}
RECORDS = 203
FORM = InputForm(shape=(8, 8))
CLIPPING = {"initial_clip": 5.0, "gradient_clip": 0.2, "learning_rate": 0.5, "weight_decay": 0.1}
RECIPES = {
    "sgd": TrainingRecipe(learning_rate=0.5, momentum=0.9, batch_size=50, clip_norm=0.3),
    "adamw": TrainingRecipe(
        optimizer="adamw", learning_rate=0.01, batch_size=64, schedule="cosine", micro_batches=3
    ),
}


def factory():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))


class InOneOrder(Examples):
    """Records in the same order in every epoch."""

    def epoch(self, batch_size, *, device, **_):
        return self.in_order(batch_size, device=device)


def records():
    generator = np.random.default_rng(1)
    return InOneOrder(
        {
            "inputs": torch.from_numpy(generator.normal(size=(RECORDS, 8, 8)).astype(np.float32)),
            "target": torch.from_numpy(generator.integers(10, size=RECORDS)),
        },
        FORM,
    )


def network_of(team):
    """A network with the same weights each time, which the leading process gives the others."""
    network = Network(factory, device=CPU, team=team)
    generator = torch.Generator().manual_seed(5)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.2
        for name, shape in network.flat.shapes.items()
    }
    network.load(weights if team.leads else None)
    return network


def whole(network):
    """All weights in a row, in the leading process; None in others."""
    gathered = network.gathered()
    return gathered.flat.values.clone() if network.team.leads else None


def seen_by(team):
    return records() if team.leads else Elsewhere(RECORDS, FORM)


def trained(team, recipe):
    network = network_of(team)
    losses = []
    steps = network.train(
        seen_by(team), recipe, epochs=3, on_progress=lambda *told: losses.append(float(told[2]))
    )
    return whole(network), losses, steps


@lru_cache
def rules():
    size = sum(tensor.numel() for tensor in factory().parameters())
    clipping = gradient_clipping.calibrate(**TARGET, **CLIPPING, steps=6)
    projected = {
        "initial_clip": 2.0,
        "model_clip": 1.0,
        "noise_std": 1.0,
        "initial_noise_std": 0.5,
    }
    needed = model_clipping.steps_needed(**TARGET, **projected)
    return {
        "gradient_clipping": GradientClipping(**CLIPPING, noise_std=clipping, steps=6),
        "output_perturbation": OutputPerturbation(initial_clip=0.5, noise_std=8.0, dimension=size),
        "model_clipping": ModelClipping(
            epsilon=1.0,
            **projected,
            steps=needed,
            learning_rate=0.5,
            weight_decay=0.1,
        ),
    }


class Noiseless:
    """Draws as many numbers as it is asked for, and adds none of them."""

    name = "none"

    def __init__(self):
        self.drawn = {}

    def add_(self, position, noise_std):
        self.drawn[noise_std] = self.drawn.get(noise_std, 0) + position.numel()


def unlearned(team, rule, seed=None):
    network = network_of(team)
    noise = Noiseless()
    if seed == "secure":
        noise = SecureNoise()
    elif seed is not None:
        noise = InsecureNoise(seed, environment="test")
    run = run_noisy_phase(
        network,
        rule,
        RandomBatches(seen_by(team), RECORDS, micro_batches=2),
        frame=ReferenceFrame.of(factory),
        noise=noise,
        **TARGET,
        on_progress=lambda *_: None,
    )
    return whole(network), run.steps, dict(noise.drawn), team.counted(noise)


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", [pytest.param("sgd", marks=pytest.mark.slow), "adamw"])
def test_training_on_several_devices_is_that_on_one(devices, name):
    values, losses, steps = trained(ALONE, RECIPES[name])
    results = together(trained, RECIPES[name], devices=devices)
    torch.testing.assert_close(results[0][0], values, rtol=1e-3, atol=1e-4)
    for _, other_losses, other_steps in results:
        assert other_steps == steps
        np.testing.assert_allclose(other_losses, losses, rtol=1e-3)


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "name",
    [
        "gradient_clipping",
        pytest.param("model_clipping", marks=pytest.mark.slow),
        pytest.param("output_perturbation", marks=pytest.mark.slow),
    ],
)
def test_without_noise_the_noisy_phase_on_several_devices_is_that_on_one(devices, name):
    rule = rules()[name]
    values, steps, drawn, _ = unlearned(ALONE, rule)
    results = together(unlearned, rule, devices=devices)
    torch.testing.assert_close(results[0][0], values, rtol=1e-3, atol=1e-5)
    for _, other_steps, own, counted in results:
        assert other_steps == steps
        assert counted == drawn
        assert sum(own.values()) < sum(drawn.values())


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_each_process_adds_noise_of_its_own_to_its_own_stretch(devices):
    rule = rules()["output_perturbation"]
    still, _, _, _ = unlearned(ALONE, rule)
    first, again = (together(unlearned, rule, "secure", devices=devices) for _ in range(2))
    scale = ReferenceFrame.of(factory).on(Network(factory, device=CPU).flat)
    ones = scale.pull_back_(torch.ones_like(still))
    noises = [
        ((released[0][0] - still) / ones / rule.noise_std).double() for released in (first, again)
    ]
    size = len(still)
    for noise in noises:
        # 910 standard normal numbers: 5 standard errors of their deviation, of kurtosis 3.
        assert abs(float(noise.std()) - 1) < 5 / (2 * size) ** 0.5
        assert abs(float(noise.mean())) < 5 / size**0.5
    rows = noises[0][: 12 * 64].chunk(devices)  # of the first tensor, with which each one's begins
    for several in (rows, noises):
        correlations = torch.corrcoef(torch.stack(several)).fill_diagonal_(0.0)
        assert float(correlations.abs().max()) < 5 / len(several[0]) ** 0.5


def drawing_otherwise(team):
    noise = Noiseless()
    noise.name = "another" if team.leads else "none"
    with pytest.raises(RunFailedError, match="different noise generators"):
        team.counted(noise)
    return True


def test_counts_of_different_generators_are_not_added_up():
    assert together(drawing_otherwise, devices=2) == [True, True]


def uneven(team, micro_batches):
    """Rows of batches that are too small for all, and of all types."""
    batches = [
        {"inputs": torch.arange(n * 6).reshape(n, 2, 3).to(dtype), "flag": torch.ones(n) > 0}
        for n, dtype in (
            (1, torch.float32),
            (3, torch.uint8),
            (5, torch.float64),
            (12, torch.int64),
        )
    ]
    return [
        [(share, {name: each.clone() for name, each in part.items()}) for part, share in parts]
        for parts in team.deal(iter(batches if team.leads else []), micro_batches)
    ]


@pytest.mark.slow  # it starts processes
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_rows_are_divided_and_none_is_alone_or_lost(micro_batches):
    whole = uneven(ALONE, 1)
    results = together(uneven, micro_batches, devices=3)
    for step, parts in enumerate(zip(*results, strict=True)):
        ((_, batch),) = whole[step]
        assert len({len(each) for each in parts}) == 1
        shares = [share for each in parts for share, _ in each]
        assert sum(shares) == pytest.approx(1)
        for name, tensor in batch.items():
            rows = [part[name] for each in parts for share, part in each if share > 0]
            assert torch.equal(torch.cat(rows), tensor)
            assert all(each.dtype == tensor.dtype for each in rows)
            assert len(rows) == 1 or min(map(len, rows)) > 1


def normed(team):
    nan = team.norm(float("nan") if team.devices > 1 and not team.leads else 1.0)
    return team.norm(0.1 + team.leads), team.count(2), nan


@pytest.mark.slow  # it starts processes
def test_every_process_gets_the_very_same_norm():
    results = together(normed, devices=3)
    assert len({norm for norm, _, _ in results}) == 1
    assert results[0][0] == pytest.approx((1.1**2 + 2 * 0.1**2) ** 0.5)
    assert all(count == 6 and np.isnan(norm) for _, count, norm in results)


def dying(team: Team, how):
    if not team.leads:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RunFailedError("its own reason")
    return team.norm(1.0)


@pytest.mark.slow  # it starts processes
def test_a_process_that_is_killed_ends_all(tmp_path):
    with pytest.raises(ProcessLostError, match=r"process (1 )?of this run ended"):
        launched(dying, "killed", devices=2, folder=tmp_path)


@pytest.mark.slow  # it starts processes
def test_the_reason_of_the_process_that_failed_is_told(tmp_path):
    with pytest.raises(RunFailedError, match="its own reason"):
        launched(dying, "failed", devices=3, folder=tmp_path)
