"""Commands over HTTP: what the service says, in words."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from app.certificates.signing import StatementSigner
from app.cli.main import app
from app.locations import trusted_keys_file
from tests.support.trust import trust, trust_in
from tests.support.weights import WEIGHTS
from tests.support.workshop import DATASET, Workshop

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


def test_push_defines_the_dataset_and_adds_the_records(served: None, tmp_path: Path) -> None:
    path = tmp_path / "digits.npz"
    np.savez(path, record_id=["a", "b"], label=[0, 3], features=np.zeros((2, 4, 4), np.uint8))

    assert _run("dataset", "push", "digits", str(path)) == {"added": 2, "already_present": 0}
    assert _run("dataset", "push", "digits", str(path)) == {"added": 0, "already_present": 2}
    shown = _run("dataset", "show", "digits")
    assert (shown["records"], shown["classes"]) == (2, 4)
    assert shown["features"] == {"shape": [4, 4], "dtype": "uint8", "offset": 0.0, "scale": 1 / 255}


def test_faulty_rows_are_listed_line_by_line(served: None, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("record_id,label,x\na,0,1\na,1,\n")

    lines = _fail("dataset", "push", "people", str(path)).splitlines()

    assert "row 1, column features" in lines[1]
    assert "row 1, column record_id: is the same as in row 0" in lines[2]


def test_forget_status_and_cancel(served: None, workshop: Workshop) -> None:
    workshop.define()
    workshop.work()
    trained, _ = workshop.split()

    request = _run("forget", DATASET, "--record", trained[0], "--external-id", "t")
    assert request["state"] == "accepted"
    assert request["external_id"] == "t"
    assert _run("status", request["id"])["external_id"] is None
    (found,) = _run("requests", "--external-id", "t")
    assert found["id"] == request["id"]
    assert _run("requests", "--external-id", "u") == []
    assert len(runner.invoke(app, ["requests", "--state", "accepted"]).stdout) > 10
    assert _run("cancel", request["id"], "--restore")["state"] == "cancelled"
    assert "only a failed one" in _fail("retry", request["id"])


def test_unknown_ids_are_listed(served: None, workshop: Workshop) -> None:
    assert "unknown id: stranger" in _fail("forget", DATASET, "--record", "stranger")


def test_download_verifies_and_writes_weights_and_certificate(
    served: None, workshop: Workshop, tmp_path: Path
) -> None:
    workshop.define()
    workshop.work()
    out = tmp_path / "out"
    assert "--trusted" in _fail("download", "model", "--out", str(out))
    key = trusted_keys_file(workshop.services.settings)
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
    workshop.define()
    workshop.work()
    stranger = StatementSigner.from_file(tmp_path / "stranger.pem", create=True)
    key = tmp_path / "stranger.json"
    key.write_bytes(trust(stranger))

    told = _fail("download", "model", "--trusted", str(key), "--out", str(tmp_path / "out"))

    assert told == "error: signature: made by a key that was not given\n"
    assert not (tmp_path / "out" / "model-v1.safetensors").exists()


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
    assert "cannot be reached" in _fail("dataset", "list")


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
