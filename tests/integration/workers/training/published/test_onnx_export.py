"""What is written as ONNX answers as the network does, for any number of records."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import safetensors.torch
import torch
from torch import nn
from typer.testing import CliRunner

from app.cli.main import app
from app.domain.architectures import ArchitectureSpec
from tests.support.described import DESCRIPTIONS, raw_features
from tests.support.networks import Computing
from tests.support.operators import PACKAGE, operators_package
from tests.support.representatives import mostly_nightly
from workers.training.published.model import load

DESCRIPTION = replace(
    DESCRIPTIONS["mlp"], architecture=ArchitectureSpec(name="custom", factory=f"{PACKAGE}:build")
)


def network(compute):
    return Computing(compute, layer=nn.Linear(64, 5), lstm=nn.LSTM(8, 5, batch_first=True))


ANY_NUMBER = {
    "len": lambda net, x: net.layer(x.reshape(len(x), -1)),
    "shape": lambda net, x: net.layer(x.view(x.shape[0], -1)),
    "new": lambda net, x: net.layer(x.flatten(1)) + torch.zeros(len(x), 5),
    "expand": lambda net, x: net.layer(x.flatten(1)) + net.layer.bias.expand(len(x), -1),
    "order": lambda net, x: net.layer(x.flatten(1))[torch.arange(len(x))],
    "numpy": lambda net, x: net.layer(torch.from_numpy(x.numpy()).flatten(1)),
    "state": lambda net, x: net.lstm(x)[0][:, -1],
}
FIXED = {
    "loop": lambda net, x: torch.stack([net.layer(x[i].flatten()) for i in range(len(x))]),
    "split": lambda net, x: torch.cat([net.layer(part.flatten(1)) for part in x.split(1)]),
    "two": lambda net, x: net.layer(x.flatten(1)) * (2 if len(x) == 2 else 1),
    "many": lambda net, x: net.layer(x.flatten(1)) * (2 if len(x) > 3 else 1),
    "dropout": lambda net, x: torch.dropout(net.layer(x.flatten(1)), 0.5, train=True),
}


def exported(compute, tmp_path, monkeypatch):
    operators_package(monkeypatch).build = lambda **_: network(compute)
    weights, out = tmp_path / "m.safetensors", tmp_path / "m.onnx"
    torch.manual_seed(3)
    tensors = {name: torch.randn_like(t) for name, t in network(compute).state_dict().items()}
    safetensors.torch.save_file(tensors, weights, metadata=DESCRIPTION.to_metadata())
    allowed = ["--no-check", "--factory", f"{PACKAGE}:build"]
    command = ["model", "export", str(weights), "--out", str(out), *allowed]
    return CliRunner().invoke(app, command), weights, out


@pytest.mark.parametrize("name", mostly_nightly(ANY_NUMBER, "state"))
def test_the_graph_takes_any_number_of_records(name, tmp_path, monkeypatch):
    answer, weights, out = exported(ANY_NUMBER[name], tmp_path, monkeypatch)

    assert answer.exit_code == 0, answer.output
    session = onnxruntime.InferenceSession(out)
    model = load(weights, check=False, factories=[f"{PACKAGE}:build"])
    for records in (1, 3, 9):
        features = raw_features(DESCRIPTION, records)
        (outputs,) = session.run(None, {"features": features})
        assert np.allclose(outputs, model.outputs_of(features).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", mostly_nightly(FIXED, "many"))
def test_a_network_that_fixes_their_number_is_refused(name, tmp_path, monkeypatch):
    answer, _, out = exported(FIXED[name], tmp_path, monkeypatch)

    assert answer.exit_code == 1
    assert "ONNX" in answer.output
    assert "record" in answer.output
    assert not out.exists()
