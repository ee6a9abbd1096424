"""Ids from files: one a line, as their owner writes them."""

import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from app.cli.files import json_file, read_ids, read_weights
from app.domain.errors import InvalidInputError, MissingExtraError


def test_lines_are_ids_whatever_ends_them(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_bytes("\ufeffZoë\r\n\n two words \nlast".encode())
    assert read_ids(path) == ["Zoë", " two words ", "last"]
    assert read_ids(None) == []


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "holds no id"), (b"\n\r\n", "holds no id"), (b"a\n\xff\n", "line 2 is not UTF-8")],
)
def test_a_file_without_ids_is_an_error(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "ids"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=told):
        read_ids(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{\n  "name": "half",\n', "line 3"),
        ('{"epsilon": 1, "epsilon": 8}', "names a field twice"),
        ('{"epsilon": 1e999}', "not finite"),
        ('{"epsilon": NaN}', "not finite"),
    ],
)
def test_a_definition_that_is_not_what_it_seems_is_refused(
    content: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=rf"model\.json does not hold JSON: .*{told}"):
        json_file(path)


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
