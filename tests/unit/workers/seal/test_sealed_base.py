"""The noisy phase of a network with a public base: it moves what is trained, and nothing else."""

import pytest
import torch

from app.accounting import gradient_clipping as accountant
from app.domain.errors import PlanError, RunFailedError
from app.domain.recipes import TrainingRecipe
from tests.support.insecure_noise import InsecureNoise
from tests.unit.workers.training.networks.test_base import Adapted
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.seal import sealed as module_under_test
from workers.seal.sealed import Sealed
from workers.training.dp_sgd.training import PrivateTraining, train_privately
from workers.training.frame import ReferenceFrame
from workers.training.networks.base import public_tensors
from workers.training.networks.network import Network
from workers.training.noisy_phase import RandomBatches

CPU = torch.device("cpu")
TARGET = {"epsilon": 1.0, "delta": 1e-5}
SETTING = {"initial_clip": 5.0, "gradient_clip": 2.0, "learning_rate": 0.01, "weight_decay": 50.0}


class Remembering(Adapted):
    """Writes into its base, but only in evaluation mode, which comes after the training."""

    def forward(self, features):
        if not self.training:
            self.scale.fill_(float(features.mean()))
        return super().forward(features)


class Leaving(Adapted):
    """Trains a public tensor in the noisy phase alone, where statistics are away."""

    def forward(self, features):
        if self.norm.running_mean is None:
            self.public.bias.data += features.mean()
        return super().forward(features)


def unlearn(sealed, retain, kind):
    rule = GradientClipping(
        **SETTING, noise_std=accountant.calibrate(**TARGET, **SETTING, steps=4), steps=4
    )
    sealed.unlearn(
        rule,
        RandomBatches(retain, 200),
        frame=ReferenceFrame.of(kind),
        noise=InsecureNoise(0, environment="test"),
    )


def test_noise_is_for_what_is_trained_and_the_rest_is_not_released(digits):
    sealed = Sealed(Adapted, device=CPU, **TARGET)
    sealed.train(digits, TrainingRecipe(), epochs=1)
    held = module_under_test._HELD[sealed].network
    before = {name: tensor.clone() for name, tensor in public_tensors(held.module).items()}
    unlearn(sealed, digits, Adapted)
    certified = sealed.open()
    certified.fine_tune(digits, TrainingRecipe(), epochs=1)
    after = public_tensors(held.module)
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert certified.trained == ("norm.weight", "norm.bias", "head.weight", "head.bias")
    assert certified.size == 12 + 12 + 120 + 10
    assert before.keys().isdisjoint(certified.tensors())


def test_a_frame_has_the_trained_tensors_alone():
    frame = ReferenceFrame.of(Adapted)
    assert set(frame.scale) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    public = {"public.weight": torch.randn(12, 64)}
    assert ReferenceFrame.of(Adapted, public_weights=public).to_json() == frame.to_json()


@pytest.mark.parametrize("kind", [Leaving, Remembering])
def test_a_base_that_would_carry_records_into_or_through_the_noise_spends_the_weights(kind, digits):
    sealed = Sealed(kind, device=CPU, **TARGET)
    sealed.train(digits, TrainingRecipe(), epochs=1)
    module_under_test._HELD[sealed].network.evaluate(digits)
    with pytest.raises(PlanError, match=r"public tensor '.*' changed"):
        unlearn(sealed, digits, kind)
    assert sealed not in module_under_test._HELD


def test_weights_that_bring_a_trained_base_are_refused(digits):
    network = Network(Adapted, device=CPU)
    whole = {name: tensor.clone() for name, tensor in network.module.state_dict().items()}
    whole["public.weight"] += 0.01
    with pytest.raises(RunFailedError, match="may have learned from records"):
        Sealed(Adapted, device=CPU, **TARGET).load(whole)


def test_private_training_leaves_the_base_alone(digits):
    def without_statistics():
        module = Adapted()
        module.norm = torch.nn.LayerNorm(12)
        return module

    network = Network(without_statistics, device=CPU)
    before, base = network.flat.values.clone(), network.base
    training = PrivateTraining(noise_multiplier=1.0, gradient_clip=1.0, sampling_rate=0.1, steps=3)
    noise = InsecureNoise(0, environment="test")
    train_privately(network, digits, TrainingRecipe(), training, noise=noise)
    assert not torch.equal(network.flat.values, before)
    network.require_base()
    assert network.base == base
