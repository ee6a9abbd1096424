"""Ensembles of adapters on one small transformer, whose public weights lie in a file."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

EXAMPLE = Path(__file__).parents[2] / "examples/texts"
FACTORY = "text_network:adapted"
OF = ["north", "south"]
NETWORK: dict[str, Any] = {"name": "custom", "factory": FACTORY, "options": {"rank": 2}}
TASK: dict[str, Any] = {
    "name": "classification",
    "inputs": [{"name": "text", "kind": "text", "length": 64}],
    "target": {"column": "of", "classes": OF},
}


def public_transformer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the transformer's public weights, where the factory looks for them."""
    monkeypatch.syspath_prepend(EXAMPLE)
    path = folder / "public.safetensors"
    monkeypatch.setenv("TEXT_WEIGHTS", str(path))
    monkeypatch.setenv("EXPUNGE_ALLOWED_FACTORIES", json.dumps([FACTORY]))
    from text_network import bert

    torch.manual_seed(1)
    safetensors.torch.save_file(bert().state_dict(), path)
    return path
