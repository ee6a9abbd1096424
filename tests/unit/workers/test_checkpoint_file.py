"""Checkpoints of PyTorch: weights by name, and never code."""

import io
import os

import pytest
import safetensors.torch
import torch
from torch import nn

from app.domain.errors import InvalidInputError
from workers.checkpoint_file import converted


class Module(nn.Linear):
    pass


class Running:
    def __reduce__(self):
        return os.mkdir, ("was-run",)


def saved(document, **how):
    file = io.BytesIO()
    torch.save(document, file, **how)
    return file.getvalue()


WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}
LIGHTNING = {
    "epoch": 3,
    "hyper_parameters": {"lr": 0.1},
    "state_dict": WEIGHTS,
    "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": []}],
}
AVERAGE = {name: tensor + 1 for name, tensor in WEIGHTS.items()}
NAMED = {"state": {"weight": {"exp_avg": torch.zeros(2)}}, "param_groups": []}


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (WEIGHTS, None),
        (LIGHTNING, None),
        ({"net": WEIGHTS, "optimizer": NAMED}, None),
        ({"args": {"lr": 1}, "model": WEIGHTS, "ema": {"weight": torch.zeros(1)}}, "model"),
        ({"model": WEIGHTS, "rng_state": torch.get_rng_state(), "loss": torch.tensor(0.3)}, None),
        ({"folds": [WEIGHTS, AVERAGE]}, "folds.0"),
        ({"a": {"student": WEIGHTS}, "b": {"teacher": LIGHTNING}}, "a.student"),
    ],
)
def test_weights_are_found(document, key):
    tensors = safetensors.torch.load(converted(saved(document), key))
    assert tensors.keys() == WEIGHTS.keys()
    assert all(torch.equal(tensors[name], WEIGHTS[name]) for name in WEIGHTS)


def test_precision_views_and_tied_tensors_are_kept():
    tied = torch.rand(4, 3)
    tensors = {"half": tied.half(), "one": tied, "other": tied, "turned": tied.T}
    found = safetensors.torch.load(converted(saved(tensors)))
    assert found["half"].dtype == torch.float16
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_files_of_before_2020_are_read():
    content = saved(WEIGHTS, _use_new_zipfile_serialization=False)
    assert safetensors.torch.load(converted(content)).keys() == WEIGHTS.keys()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (saved({"state_dict": Running()}), "an object of posix.mkdir"),
        (saved(Module(2, 2)), r"test_checkpoint_file\.Module.*state_dict\(\)"),
        (saved([torch.zeros(2)]), "no weights by name, but list"),
        (saved({"epoch": 3}), "no weights by name"),
        (saved({"one": WEIGHTS, "two": WEIGHTS}), "choose one with --key: 'one', 'two'"),
        (saved({"model": WEIGHTS, "model_ema": AVERAGE}), "--key: 'model', 'model_ema'"),
        (saved({"epochs": [WEIGHTS, AVERAGE]}), "--key: 'epochs.0', 'epochs.1'"),
        (saved(WEIGHTS | {"ema": AVERAGE}), "--key: '', 'ema'"),
        (
            saved(LIGHTNING | {"callbacks": {"EMA": {"last": {"state_dict": AVERAGE}}}}),
            "--key: 'state_dict', 'callbacks.EMA.last.state_dict'",
        ),
        (saved(WEIGHTS | {"_extra_state": [3]}), "'_extra_state' is list"),
        (saved({"weight": torch.zeros(2, dtype=torch.complex64)}), "'weight' is quantised"),
        (b"PK\x03\x04" + bytes(100), "not a checkpoint"),
        (b"\x80\x02junk", "not a checkpoint"),
    ],
)
def test_anything_else_is_explained(content, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=words):
        converted(content)
    assert not list(tmp_path.iterdir())


def test_a_key_that_leads_nowhere_is_answered_with_those_that_do():
    with pytest.raises(InvalidInputError, match="under 'weights', but under 'state_dict'"):
        converted(saved({"state_dict": WEIGHTS}), "weights")


def test_a_release_that_ran_code_is_not_used(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(InvalidInputError, match="CVE-2025-32434"):
        converted(saved(WEIGHTS))
