"""Files of weights: safetensors as they are, and PyTorch's, which are converted."""

import sys

import pytest
import safetensors.torch
import torch

from app.cli.weights import read_weights
from app.domain.errors import InvalidInputError, MissingExtraError

WEIGHTS = {"model.weight": torch.arange(3.0)}


def test_safetensors_stay_as_they_are(tmp_path):
    file = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(WEIGHTS, file)
    assert read_weights(file, None) == file.read_bytes()
    with pytest.raises(InvalidInputError, match="--key"):
        read_weights(file, "state_dict")


def test_a_checkpoint_is_converted_whatever_its_name_is(tmp_path, capsys):
    file = tmp_path / "last.weights"
    torch.save({"ema": WEIGHTS, "swa": WEIGHTS}, file)
    assert safetensors.torch.load(read_weights(file, "ema")).keys() == WEIGHTS.keys()
    assert "converted" in capsys.readouterr().err


def test_without_pytorch_it_says_what_to_do(tmp_path, monkeypatch):
    file = tmp_path / "weights.pt"
    torch.save(WEIGHTS, file)
    monkeypatch.delitem(sys.modules, "workers.checkpoint_file", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'expunge\[torch\]'"):
        read_weights(file, None)
