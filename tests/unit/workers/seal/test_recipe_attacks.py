"""Attacks on the noisy phase through the recipe: state, precision and steps that it might carry."""

import pytest
import torch
from torch import nn

from app.accounting import gradient_clipping as accountant
from app.domain.recipes import ParameterGroup, TrainingRecipe
from tests.support.insecure_noise import InsecureNoise
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.seal import sealed as module_under_test
from workers.seal.sealed import Sealed
from workers.training import loop
from workers.training.dp_sgd.training import PrivateTraining, train_privately
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network
from workers.training.noisy_phase import RandomBatches

CPU = torch.device("cpu")
TARGET = {"epsilon": 1.0, "delta": 1e-5}
SETTING = {"initial_clip": 5.0, "gradient_clip": 2.0, "learning_rate": 0.01, "weight_decay": 50.0}
EVERYTHING = TrainingRecipe(
    optimizer="adamw",
    learning_rate=0.01,
    schedule="cosine",
    warmup_fraction=0.1,
    precision="bfloat16",
    clip_norm=1.0,
    micro_batches=2,
    batch_size=100,
    groups=(ParameterGroup("0.*", learning_rate=0.02),),
)


class Watching(nn.Linear):
    """Notes in which type it computes."""

    seen: list[torch.dtype] = []  # noqa: RUF012

    def forward(self, inputs):
        outputs = super().forward(inputs)
        self.seen.append(outputs.dtype)
        return outputs


def factory():
    return nn.Sequential(Watching(64, 10))


@pytest.fixture(autouse=True)
def _nothing_seen():
    Watching.seen.clear()


@pytest.fixture
def optimisers(monkeypatch):
    """All optimisers that are made."""
    made = []
    make = loop.optimizer_of

    def watched(*arguments):
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(loop, "optimizer_of", watched)
    return made


def unlearn(sealed, retain, *, micro_batches=1):
    rule = GradientClipping(
        **SETTING, noise_std=accountant.calibrate(**TARGET, **SETTING, steps=4), steps=4
    )
    sealed.unlearn(
        rule,
        RandomBatches(retain, len(retain), micro_batches=micro_batches),
        frame=ReferenceFrame.of(factory),
        noise=InsecureNoise(0, environment="test"),
    )


def values_of(sealed):
    return module_under_test._HELD[sealed].network.flat.values.clone()


def test_noisy_steps_are_never_in_bfloat16_and_make_no_optimiser(digits, optimisers):
    sealed = Sealed(factory, device=CPU, **TARGET)
    sealed.train(digits, EVERYTHING, epochs=1)
    assert set(Watching.seen) == {torch.bfloat16}
    assert len(optimisers) == 1
    Watching.seen.clear()
    unlearn(sealed, digits, micro_batches=2)
    assert set(Watching.seen) == {torch.float32}
    assert len(optimisers) == 1


def test_nothing_of_the_training_but_the_weights_reaches_the_noisy_phase(digits):
    """From the same weights, it ends in the same weights, whatever training came before."""
    trained = Sealed(factory, device=CPU, **TARGET)
    trained.train(digits, EVERYTHING, epochs=1)
    weights = values_of(trained)
    plain = Sealed(factory, device=CPU, **TARGET)
    network = Network(factory, device=CPU)
    network.flat.values.copy_(weights)
    plain.load(network.tensors())
    for sealed in (trained, plain):
        unlearn(sealed, digits)
    # The order of records within the one batch differs, hence the last digits.
    torch.testing.assert_close(values_of(trained), values_of(plain), rtol=1e-4, atol=1e-5)


def test_no_moment_of_the_training_is_left_and_fine_tuning_begins_without_any(digits, optimisers):
    sealed = Sealed(factory, device=CPU, **TARGET)
    sealed.train(digits, EVERYTHING, epochs=1)
    (first,) = optimisers
    states = [value for state in first.state.values() for value in state.values()]
    assert states
    assert not any(bool(value.any()) for value in states)
    unlearn(sealed, digits)
    certified = sealed.open()
    begins = []
    certified.fine_tune(
        digits,
        EVERYTHING,
        epochs=1,
        on_progress=lambda step, *_: begins.append(
            {float(state["step"]) for state in optimisers[-1].state.values()}
        ),
    )
    assert len(optimisers) == 2
    assert optimisers[1] is not first
    assert begins[0] == {1.0}


def test_private_training_computes_in_full_precision_whatever_the_recipe(digits):
    network = Network(factory, device=CPU)
    training = PrivateTraining(noise_multiplier=1.0, gradient_clip=1.0, sampling_rate=0.1, steps=3)
    noise = InsecureNoise(0, environment="test")
    train_privately(network, digits, EVERYTHING, training, noise=noise)
    assert set(Watching.seen) == {torch.float32}
