"""Commands over HTTP: what the service says, in words."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from app.cli.main import app
from app.evidence.certificates.signing import StatementSigner
from tests.support.trust import trust, trust_in
from tests.support.weights import WEIGHTS
from tests.support.workshop import DATASET, TASK, Workshop

runner = CliRunner()


def _run(*arguments: str) -> dict:
    answer = runner.invoke(app, list(arguments))
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def _fail(*arguments: str) -> str:
    answer = runner.invoke(app, list(arguments))
    assert answer.exit_code == 1
    assert isinstance(answer.exception, SystemExit), answer.exception
    return answer.stderr


def test_waiting_for_a_model_that_waits_for_weights_says_so(
    served: None, workshop: Workshop, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"name": "net", "dataset": DATASET, "task": TASK,
                                "weights": "upload",
                                "architecture": {"name": "logistic"}}))  # fmt: skip

    for command in (("create", str(path)), ("show", "net")):
        answer = runner.invoke(app, ["model", *command, "--wait"])
        assert answer.exit_code == 0, answer.output
        assert json.loads(answer.stdout)["latest_run"] is None
        assert answer.stderr == "net waits for its weights: expunge model upload net FILE\n"


def test_forget_status_and_cancel(served: None, workshop: Workshop) -> None:
    workshop.train()
    trained, _ = workshop.split()

    request = _run("forget", DATASET, "--record", trained[0], "--external-id", "t")
    assert request["state"] == "accepted"
    assert request["external_id"] == "t"
    assert _run("status", request["id"])["external_id"] is None
    (found,) = _run("requests", "--external-id", "t")
    assert found["id"] == request["id"]
    assert _run("requests", "--external-id", "u") == []
    assert len(runner.invoke(app, ["requests", "--state", "accepted"]).stdout) > 10
    assert _run("cancel", request["id"])["state"] == "cancelled"
    assert "only a failed one" in _fail("retry", request["id"])


def test_unknown_ids_are_listed(served: None, workshop: Workshop) -> None:
    assert "unknown id: stranger" in _fail("forget", DATASET, "--record", "stranger")


def test_download_verifies_and_writes_weights_and_certificate(
    served: None, workshop: Workshop, tmp_path: Path
) -> None:
    workshop.train()
    out = tmp_path / "out"
    assert "--trusted" in _fail("download", "model", "--out", str(out))
    key = workshop.services.settings.trusted_keys_file
    key.write_bytes(trust_in(workshop.services))

    answer = runner.invoke(app, ["download", "model", "--out", str(out)])

    assert answer.exit_code == 0, answer.output
    names = {path.name: path for path in out.iterdir()}
    assert set(names) == {"log.checkpoint", "model-v1.safetensors", "model-v1.certificate.json"}
    assert names["model-v1.safetensors"].read_bytes() == WEIGHTS
    steps = [line.split()[1] for line in answer.stdout.splitlines() if line.startswith("ok")]
    assert {"signature", "digest", "guarantee", "subject"} <= set(steps)


def test_a_certificate_by_another_key_is_told_in_one_line(
    served: None, workshop: Workshop, tmp_path: Path
) -> None:
    workshop.train()
    stranger = StatementSigner.from_file(tmp_path / "stranger.pem", create=True)
    key = tmp_path / "stranger.json"
    key.write_bytes(trust(stranger))

    told = _fail("download", "model", "--trusted", str(key), "--out", str(tmp_path / "out"))

    assert told == "error: signature: made by a key that was not given\n"
    assert not (tmp_path / "out" / "model-v1.safetensors").exists()


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        ("gradient_clipping", "each release, the first one too, tells at most 0."),
        ("output_perturbation", "under output_perturbation each release, the first one too, tells"),
        ("model_clipping", "tells of it what the policy's (ε, δ) allows"),
    ],
)
def test_an_upload_says_what_it_is_worth(
    served: None, workshop: Workshop, tmp_path: Path, mechanism: str, words: str
) -> None:
    definition, weights = tmp_path / "net.json", tmp_path / "net.safetensors"
    definition.write_text(
        json.dumps(
            {
                "name": "net",
                "dataset": DATASET,
                "task": TASK,
                "weights": "upload",
                "architecture": {"name": "logistic"},
                "policy": {"epsilon": 1.0, "delta": 1e-5, "mechanism": mechanism},
            }
        )
    )
    assert runner.invoke(app, ["model", "create", str(definition)]).exit_code == 0
    save_file({"1.weight": np.zeros((10, 64), np.float32)}, weights)
    answer = runner.invoke(app, ["model", "upload", "net", str(weights)])
    assert answer.exit_code == 0, answer.output
    assert answer.stderr.startswith("net.safetensors: ")
    assert words in answer.stderr


def test_a_backbone_is_defined_uploaded_and_listed(served: None, tmp_path: Path) -> None:
    definition = tmp_path / "backbone.json"
    definition.write_text(
        json.dumps(
            {
                "name": "public",
                "architecture": {"name": "logistic"},
                "input": {"shape": [4]},
                "classes": 2,
                "source": "a test",
            }
        )
    )
    weights = tmp_path / "public.safetensors"
    save_file({"1.weight": np.zeros((2, 4), np.float32)}, weights)

    assert _run("backbone", "define", str(definition))["sha256"] is None
    shown = _run("backbone", "upload", "public", str(weights))
    assert shown["size_bytes"] == weights.stat().st_size
    assert _run("backbone", "list") == [shown]
    assert "never change" in _fail("backbone", "upload", "public", str(weights))


NETWORKS = """
from torch import nn

def build(*, input_shape, classes, width):
    return nn.Sequential(nn.Linear(*input_shape, width), nn.ReLU(), nn.Linear(width, 2))
"""


@pytest.mark.slow  # it starts programs that import PyTorch
def test_a_public_network_is_tried_here_and_added(
    served: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "public_nets.py").write_text(NETWORKS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    own = {"0.weight": np.ones((3, 4)), "0.bias": np.zeros(3), "2.weight": np.ones((2, 3)),
           "2.bias": np.zeros(2)}  # fmt: skip
    file = tmp_path / "larger.safetensors"
    tensors = {f"model.{name}": array.astype(np.float32) for name, array in own.items()}
    save_file(tensors | {"classifier.bias": np.zeros(9, np.float32)}, file)
    add = [
        *("backbone", "add", "net", "--factory", "public_nets:build", "--shape", "4"),
        *("--option", "width=3", "--weights", str(file)),
    ]

    assert "say where the weights come from" in _fail(*add)
    add += ["--source", "a test"]
    assert "no module '00': close to it are '0'" in _fail(*add, "--layer", "00")
    assert "expected NAME" in _fail(*add, "--layer", "0:4x4")
    told = _fail(*add, "--option", "width=x")
    assert "TypeError" in told
    assert "public_nets.py" in told
    assert "neither safetensors nor" in _fail(*add, "--weights", str(tmp_path / "public_nets.py"))
    assert _run("backbone", "list") == []

    added = runner.invoke(app, [*add, "--layer", "2", "--layer", "0"])
    assert added.exit_code == 0, added.output
    assert "left out, as the network has no such tensors (1): classifier.bias" in added.stderr
    shown = json.loads(added.stdout)
    assert (shown["features"], shown["layers"][0]["module"]) == (5, "2")
    assert _run("backbone", "show", "net") == shown
    assert "exists already" in _fail(*add)


def test_keys_are_made_over_http(served: None) -> None:
    made = _run("api-key", "create", "desk", "--scope", "forget:write")
    assert made["scopes"] == ["forget:write"]
    assert "everything" not in made["scopes"]
    assert "scopes" in _fail("api-key", "create", "desk", "--scope", "everything")


def test_a_service_that_is_not_there(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPUNGE_API_KEY", "k")
    monkeypatch.setenv("EXPUNGE_API_URL", "http://127.0.0.1:9")
    assert "cannot be reached" in _fail("dataset", "list")
    monkeypatch.setenv("EXPUNGE_API_URL", "nonsense")
    assert "EXPUNGE_API_URL" in _fail("dataset", "list")


def test_without_a_key_it_says_how_to_get_one(settings) -> None:
    assert "expunge init" in _fail("dataset", "list")


def test_a_setting_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPUNGE_PORT", "eighty")
    assert "EXPUNGE_PORT" in _fail("dataset", "list")


def test_a_file_that_cannot_be_used(served: None, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text("[]")
    assert "JSON object" in _fail("model", "create", str(path))
    assert "Is a directory" in _fail("model", "create", str(tmp_path))


def test_runs_are_listed_cancelled_and_tried_again(served: None, workshop: Workshop) -> None:
    workshop.define()
    run_id = workshop.active_run()
    assert run_id is not None

    assert _run("run", "cancel", run_id)["state"] == "cancelled"

    assert [run["id"] for run in _run("run", "list", "--state", "cancelled")] == [run_id]
    assert "can no longer be cancelled" in _fail("run", "cancel", run_id)
    assert _run("run", "retry", run_id)["state"] == "queued"


def test_a_dataset_is_destroyed_after_a_look(served: None, workshop: Workshop) -> None:
    workshop.train()
    command = ("dataset", "destroy", DATASET)
    assert _run(*command, "--dry-run")["models"][0]["archived_at"] is None
    assert runner.invoke(app, [*command], input="n\n").exit_code == 1
    assert _run("model", "show", "model")["certified"]["number"] == 1
    gone = _run(*command, "--yes")
    assert json.loads(gone["statement"]["entry"])["kind"] == "dataset.destroyed"
    assert gone["archived_at"]
