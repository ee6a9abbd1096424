"""Sealed weights: no way out before the target, one way out after it."""

import copy
import inspect
import io
import json
import logging
import pickle
import traceback
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from app.accounting import gradient_clipping as accountant
from app.domain.errors import (
    LeaseLostError,
    PlanError,
    RunFailedError,
    SealedStateError,
    TargetNotMetError,
)
from app.domain.recipes import TrainingRecipe
from workers.mechanisms.gradient_clipping import GradientClipping
from workers.noise.generators import SecureNoise
from workers.seal import sealed as module_under_test
from workers.seal.sealed import Certified, Sealed
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network
from workers.training.noisy_phase import RandomBatches

CPU = torch.device("cpu")
TARGET = {"epsilon": 1.0, "delta": 1e-5}
SETTING = {"initial_clip": 5.0, "gradient_clip": 2.0, "learning_rate": 0.01, "weight_decay": 50.0}
MARK = 31337.25  # a weight that is easy to find in a text


def mechanism(*, epsilon=1.0, steps=4):
    noise_std = accountant.calibrate(epsilon=epsilon, delta=1e-5, **SETTING, steps=steps)
    return GradientClipping(**SETTING, noise_std=noise_std, steps=steps)


def factory():
    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


def marked_tensors():
    return {
        name: np.full_like(tensor, MARK)
        for name, tensor in Network(factory, device=CPU).tensors().items()
    }


@pytest.fixture
def marked():
    sealed = Sealed(factory, device=CPU, **TARGET)
    sealed.load(marked_tensors())
    return sealed


def weights_of(sealed):
    """What an attacker who reads this module's private table would see."""
    return module_under_test._HELD[sealed].network.flat.values


def unlearn(sealed, retain, rule=None, **changes):
    keywords = {
        "frame": ReferenceFrame.of(factory),
        "noise": SecureNoise(),
    } | changes
    return sealed.unlearn(rule or mechanism(), RandomBatches(retain, 100), **keywords)


def digits_in(text):
    return any(mark in text for mark in ("31337", "3.1337", "tensor(", "array("))


# No way out


@pytest.mark.parametrize(
    "attempt",
    [
        pickle.dumps,
        lambda sealed: pickle._dumps(sealed, protocol=0),
        copy.copy,
        copy.deepcopy,
        lambda sealed: copy.deepcopy({"nested": [sealed]}),
        lambda sealed: torch.save(sealed, io.BytesIO()),
        lambda sealed: torch.save({"model": sealed}, io.BytesIO()),
        lambda sealed: sealed.__reduce_ex__(2),
        lambda sealed: sealed.__reduce__(),
        json.dumps,
        vars,
        list,
        dict,
        bytes,
        lambda sealed: np.asarray(sealed, dtype=float),
        torch.tensor,
        lambda sealed: sealed.state_dict(),
        lambda sealed: sealed.parameters(),
        lambda sealed: sealed.module,
        lambda sealed: sealed.tensors(),
        lambda sealed: sealed.__dict__,
        lambda sealed: setattr(sealed, "leak", 1),
    ],
)
def test_weights_cannot_be_taken(marked, attempt):
    refusals = (SealedStateError, TypeError, AttributeError, ValueError, RuntimeError)
    with pytest.raises(refusals) as caught:
        attempt(marked)
    assert not digits_in(str(caught.value))


def contains_weights(thing):
    return isinstance(thing, torch.Tensor | np.ndarray | nn.Module | Network | bytes)


def test_nothing_that_can_be_read_off_the_object_is_a_weight(marked):
    for name, member in inspect.getmembers(marked):
        assert not digits_in(repr(member)), name
        assert not contains_weights(member), name


def test_printing_and_logging_show_no_values(marked, caplog):
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("%s %r", marked, marked)
    text = f"{marked} {marked!r} {caplog.text} {[marked]}"
    assert not digits_in(text)
    assert "Sealed" in text


def test_certified_weights_cannot_be_made_by_hand(marked):
    network = Network(factory, device=CPU)
    guarantee = accountant.account(**SETTING, noise_std=1e6, steps=1)
    with pytest.raises(SealedStateError):
        Certified(object(), network, guarantee, 1)


# The one way out


def test_only_a_met_target_opens_and_only_once(marked, digits):
    with pytest.raises(TargetNotMetError):
        marked.open()
    assert (weights_of(marked) == MARK).all()  # refused, but still there to go on with
    guarantee = unlearn(marked, digits)
    assert guarantee.meets(**TARGET)
    certified = marked.open()
    assert certified.guarantee == guarantee
    assert certified.noisy_steps == 4
    for again in (marked.open, lambda: unlearn(marked, digits), lambda: marked.load({})):
        with pytest.raises(SealedStateError):
            again()


def test_a_mechanism_for_a_weaker_target_opens_nothing(marked, digits):
    with pytest.raises(TargetNotMetError):
        unlearn(marked, digits, mechanism(epsilon=1.01))
    with pytest.raises(SealedStateError):
        marked.open()


def test_a_mechanism_that_lies_opens_nothing(marked, digits):
    honest = mechanism(epsilon=8.0)

    class Liar:
        steps = 4

        def begin(self, position, conditions):
            return honest.begin(position, replace(conditions, epsilon=8.0))

    unlearn(marked, digits, Liar())
    with pytest.raises(TargetNotMetError):
        marked.open()


def test_the_noisy_phase_runs_once(marked, digits):
    unlearn(marked, digits)
    for again in (
        lambda: unlearn(marked, digits),
        lambda: marked.load(marked_tensors()),
        lambda: marked.train(digits, TrainingRecipe(), epochs=1),
    ):
        with pytest.raises(SealedStateError):
            again()
    assert marked.open().tensors()


def test_the_released_model_is_finite_learns_and_has_fresh_statistics(digits, held_out):
    sealed = Sealed(factory, device=CPU, **TARGET)
    assert sealed.train(digits, TrainingRecipe(), epochs=1) == 8
    unlearn(sealed, digits)
    certified = sealed.open()
    tensors = certified.tensors()
    assert tensors["1.num_batches_tracked"] == 10
    features, _ = next(digits.in_order(len(digits), device=CPU)).values()
    hidden = features.double().numpy() @ tensors["0.weight"].T.astype(float) + tensors["0.bias"]
    np.testing.assert_allclose(tensors["1.running_mean"], hidden.mean(axis=0), rtol=0.02, atol=0.02)
    losses = []
    certified.fine_tune(
        digits,
        TrainingRecipe(learning_rate=0.05),
        epochs=20,
        on_progress=lambda step, total, loss: losses.append(float(loss)),
    )
    assert losses[-1] < losses[0]
    assert certified.evaluate(held_out).score > 0.8


def test_saved_tensors_are_copies_and_load_into_the_next_run(digits):
    sealed = Sealed(factory, device=CPU, **TARGET)
    unlearn(sealed, digits)
    certified = sealed.open()
    tensors = certified.tensors()
    following = Sealed(factory, device=CPU, **TARGET)
    following.load({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    expected = np.concatenate([tensors[name].ravel() for name, _ in factory().named_parameters()])
    assert np.array_equal(weights_of(following).numpy(), expected)
    for tensor in tensors.values():
        tensor[...] = 0
    assert certified.tensors()["0.weight"].any()


def test_two_fresh_networks_differ_whatever_torchs_seed():
    networks = []
    for _ in range(2):
        torch.manual_seed(0)
        networks.append(Sealed(factory, device=CPU, **TARGET))
    assert not torch.equal(weights_of(networks[0]), weights_of(networks[1]))


# Failures


class Failing(nn.Module):
    """Raises, in training, an exception that quotes a weight and holds frames full of them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, features):
        stolen = self.linear.weight.detach().clone()
        if self.training and not torch.is_inference_mode_enabled() and len(features) > 2:
            raise ValueError(f"bad value {stolen}") from KeyError(stolen[0, 0].item())
        return self.linear(features)


def everything_printed(error):
    """The report of a tool that prints local variables, from the first frame below this file's."""
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    shown = traceback.TracebackException(type(error), error, below, capture_locals=True)
    return "".join(shown.format()) + repr(error.__context__) + repr(error.__cause__)


@pytest.mark.parametrize("phase", ["train", "unlearn"])
def test_an_exception_inside_carries_no_values_and_spends_the_weights(phase, digits):
    sealed = Sealed(Failing, device=CPU, **TARGET)
    sealed.load({"linear.weight": np.full((10, 64), MARK), "linear.bias": np.full(10, MARK)})
    weights = weights_of(sealed)
    frame = ReferenceFrame.of(Failing)
    phases = {
        "train": lambda: sealed.train(digits, TrainingRecipe(), epochs=1),
        "unlearn": lambda: unlearn(sealed, digits, frame=frame),
    }
    with pytest.raises(RuntimeError, match="ValueError in test_sealed") as caught:
        phases[phase]()
    assert not digits_in(everything_printed(caught.value))
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert not weights.any()
    with pytest.raises(SealedStateError):
        sealed.open()


def test_our_own_errors_keep_their_message_and_lose_their_frames(digits):
    sealed = Sealed(factory, device=CPU, **TARGET)
    with pytest.raises(RunFailedError, match="lower learning_rate") as caught:
        sealed.train(digits, TrainingRecipe(learning_rate=1e38, schedule="constant"), epochs=2)
    assert not digits_in(everything_printed(caught.value))
    with pytest.raises(SealedStateError):
        sealed.train(digits, TrainingRecipe(), epochs=1)


def test_labels_of_records_do_not_reach_an_error(digits):
    sealed = Sealed(lambda: nn.Linear(64, 3), device=CPU, **TARGET)
    with pytest.raises(RuntimeError) as caught:
        sealed.train(digits, TrainingRecipe(), epochs=1)
    assert "Target" not in everything_printed(caught.value)


@pytest.mark.parametrize("phase", ["train", "unlearn"])
def test_what_the_callers_callback_raises_comes_back_as_it_was(phase, marked, digits):
    lost = LeaseLostError("another worker")

    def stop(*_):
        raise lost from OSError("the database said so")

    weights = weights_of(marked)
    slow = TrainingRecipe(learning_rate=1e-9)
    phases = {
        "train": lambda: marked.train(digits, slow, epochs=1, on_progress=stop),
        "unlearn": lambda: unlearn(marked, digits, on_progress=stop),
    }
    with pytest.raises(LeaseLostError) as caught:
        phases[phase]()
    assert caught.value is lost
    assert isinstance(lost.__cause__, OSError)
    assert not digits_in(everything_printed(lost))
    assert not weights.any()


def test_progress_before_the_target_holds_counts_and_the_guarantee_only(marked, digits):
    seen = []
    marked.train(
        digits,
        TrainingRecipe(learning_rate=1e-9),
        epochs=1,
        on_progress=lambda *progress: seen.append(progress),
    )
    assert seen == [(step, 8) for step in range(1, 9)]
    seen.clear()
    unlearn(
        marked,
        digits,
        on_progress=lambda step, total, guarantee: seen.append((step, total, guarantee())),
    )
    assert [(step, total) for step, total, _ in seen] == [(step, 4) for step in range(1, 5)]
    epsilons = [guarantee.epsilon(delta=1e-5) for *_, guarantee in seen]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[-1] <= 1.0 < epsilons[-2]


def test_destroy_overwrites(marked):
    weights = weights_of(marked)
    marked.destroy()
    marked.destroy()
    assert not weights.any()


def test_weights_are_dropped_with_their_object(marked):
    before = len(module_under_test._HELD)
    other = Sealed(factory, device=CPU, **TARGET)
    assert len(module_under_test._HELD) == before + 1
    del other
    assert len(module_under_test._HELD) == before


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "nan"])
def test_weights_that_do_not_fit_are_refused_by_name(fault):
    tensors = marked_tensors()
    if fault == "missing":
        del tensors["3.bias"]
    elif fault == "unknown":
        tensors["3.bias2"] = tensors["3.bias"]
    elif fault == "shape":
        tensors["3.bias"] = np.zeros(9)
    else:
        tensors["3.bias"][2] = np.nan
    with pytest.raises(RunFailedError, match=r"3\.bias") as caught:
        Sealed(factory, device=CPU, **TARGET).load(tensors)
    assert not digits_in("".join(traceback.format_exception(caught.value)))


def test_an_architecture_with_other_state_is_refused():
    class Other(nn.Linear):
        def get_extra_state(self):
            return torch.zeros(3)

    with pytest.raises(PlanError, match="_extra_state"):
        Sealed(lambda: Other(64, 10), device=CPU, **TARGET)


def test_retraining_from_a_fresh_start_is_exact_and_opens(digits):
    sealed = Sealed(factory, device=CPU, **TARGET)
    sealed.train(digits, TrainingRecipe(), epochs=1)
    guarantee = sealed.retrained()
    assert guarantee.epsilon(delta=1e-5) == 0.0
    assert sealed.open().noisy_steps == 0


def test_only_one_training_from_nothing_is_a_retraining(digits):
    trained_twice = Sealed(factory, device=CPU, **TARGET)
    trained_twice.train(digits, TrainingRecipe(), epochs=0.5)
    trained_twice.train(digits, TrainingRecipe(), epochs=0.5)
    loaded = Sealed(factory, device=CPU, **TARGET)
    loaded.load(marked_tensors())
    loaded_and_trained = Sealed(factory, device=CPU, **TARGET)
    loaded_and_trained.load(marked_tensors())
    loaded_and_trained.train(digits, TrainingRecipe(), epochs=0.5)
    fresh = Sealed(factory, device=CPU, **TARGET)
    for sealed in (trained_twice, loaded, loaded_and_trained, fresh):
        with pytest.raises(SealedStateError):
            sealed.retrained()
        with pytest.raises(TargetNotMetError):
            sealed.open()
