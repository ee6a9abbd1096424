"""Forget requests from the command line: ids from files, receipts, interrupted waits."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.client import ExpungeClient
from tests.support.workshop import DATASET, Workshop

runner = CliRunner()


@pytest.fixture
def trained(served: None, workshop: Workshop) -> list[str]:
    """Records that a model was trained on."""
    workshop.train()
    return workshop.split()[0]


def _requests() -> list[dict]:
    return json.loads(runner.invoke(app, ["requests", "--json"]).stdout)


def test_ids_come_from_a_file_and_from_standard_input(trained: list[str], tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text("\n".join(trained[:2]))
    receipt = tmp_path / "receipt.json"
    command = ["forget", DATASET, "--record", trained[2], "--records-from", str(path)]

    shown = runner.invoke(app, [*command, "--receipt", str(receipt), "--json"])

    assert json.loads(shown.stdout)["records"] == 3
    assert set(json.loads(receipt.read_text())["record_ids"]) == set(trained[:3])
    command = ["forget", DATASET, "--records-from", "-"]
    shown = runner.invoke(app, command, input=f"{trained[3]}\r\n{trained[4]}\r\n")
    assert json.loads(shown.stdout)["records"] == 2


@pytest.mark.parametrize("there", ["an older receipt", "no directory"])
def test_without_a_file_for_the_receipt_nothing_is_sent(
    trained: list[str], tmp_path: Path, there: str
) -> None:
    receipt = tmp_path / ("r.json" if there == "an older receipt" else "none/r.json")
    if there == "an older receipt":
        receipt.write_text("{}")
    command = ["forget", DATASET, "--record", trained[0], "--receipt", str(receipt)]

    answer = runner.invoke(app, command)

    assert answer.exit_code == 1
    assert str(receipt) in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert _requests() == []


def test_a_receipt_that_cannot_be_written_is_on_the_screen(trained: list[str]) -> None:
    command = ["forget", DATASET, "--record", trained[0], "--receipt", "/dev/full", "--json"]

    answer = runner.invoke(app, command)

    assert answer.exit_code == 1
    (request,) = _requests()
    assert json.loads(answer.stdout)["receipt_salt"] == request["receipt_salt"]
    assert "No space left on device: /dev/full" in answer.stderr


def test_waiting_for_a_request_that_is_cancelled_fails(trained: list[str]) -> None:
    command = ["forget", DATASET, "--record", trained[0], "--external-id", "ticket-1"]
    request = json.loads(runner.invoke(app, [*command, "--json"]).stdout)
    assert runner.invoke(app, ["cancel", request["id"]]).exit_code == 0

    for waits in ([*command, "--wait", "--json"], ["status", request["id"], "--wait", "--json"]):
        answer = runner.invoke(app, waits)
        assert json.loads(answer.stdout)["state"] == "cancelled"
        assert answer.exit_code == 1
        assert "the request was cancelled" in answer.stderr
    answer = runner.invoke(app, ["certificates", request["id"], "--json"])
    assert json.loads(answer.stdout) == []
    assert f"expunge status {request['id']}" in answer.stderr


def test_an_interrupted_wait_shows_the_request_and_how_to_go_on(
    trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ExpungeClient, "wait_for_request", interrupted)

    answer = runner.invoke(app, ["forget", DATASET, "--record", trained[0], "--wait", "--json"])

    assert answer.exit_code == 130
    (request,) = _requests()
    assert json.loads(answer.stdout)["id"] == request["id"]
    assert f"expunge status {request['id']} --wait" in answer.stderr


def test_nothing_named_is_nothing_sent(trained: list[str], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for named in ([], ["--subjects-from", str(empty)], ["--subjects-from", str(tmp_path)]):
        answer = runner.invoke(app, ["forget", DATASET, *named])
        assert answer.exit_code == 1
        assert len(answer.stderr.splitlines()) == 1
    twice = ["--subjects-from", "-", "--records-from", "-"]
    assert runner.invoke(app, ["forget", DATASET, *twice], input="a").exit_code == 2
    assert _requests() == []


def test_with_json_every_list_and_check_is_one_document(trained: list[str]) -> None:
    commands = (
        *("dataset list", f"dataset show {DATASET}", "model list", "model show model"),
        *("backbone list", "run list", "requests", "api-key list", "callback list", "log trail"),
        *("callback secret", "log checkpoint", "signing-key list", "storage check"),
    )
    for command in commands:
        answer = runner.invoke(app, [*command.split(), "--json"])
        assert answer.exit_code == 0, (command, answer.output)
        json.loads(answer.stdout)


def test_a_preview_makes_no_request(trained: list[str], tmp_path: Path) -> None:
    command = ["forget", DATASET, "--record", trained[0], "--preview"]

    shown = json.loads(runner.invoke(app, [*command, "--json"]).stdout)

    assert [effect["model"] for effect in shown["models"]] == ["model"]
    assert shown["models"][0]["run"]["mechanism"] == "gradient_clipping"
    assert _requests() == []
    receipt = tmp_path / "receipt.json"
    for more in (["--receipt", str(receipt)], ["--external-id", "x"], ["--wait"]):
        refused = runner.invoke(app, [*command, *more])
        assert refused.exit_code == 2
    assert not receipt.exists()


def test_a_person_is_forgotten_everywhere(trained: list[str], tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    command = ["forget", "--subject", "subject-1"]
    previewed = json.loads(runner.invoke(app, [*command, "--preview"]).stdout)
    assert [each["dataset"] for each in previewed["previews"]] == [DATASET]
    assert _requests() == []
    command += ["--external-id", "T 1", "--receipt", str(receipt)]
    shown = runner.invoke(app, command)
    (request,) = json.loads(shown.stdout)["requests"]
    written = json.loads((tmp_path / f"receipt-{DATASET}.json").read_text())
    assert (written["request"], written["subject_ids"]) == (request["id"], ["subject-1"])
    found = runner.invoke(app, ["requests", "--json", "--external-id", "T 1"])
    assert [each["id"] for each in json.loads(found.stdout)] == [request["id"]]
    again = runner.invoke(app, command)
    assert again.exit_code == 1
    assert "is accepted, but there is no receipt" in again.stderr
    for words, said in {
        "--subject nobody": "nobody",
        "--record record-1": "record_ids have one dataset",
        f"--subject subject-1 --subject subject-2 --receipt {receipt}": "of one --subject",
    }.items():
        refused = runner.invoke(app, ["forget", *words.split()])
        assert (refused.exit_code, said in refused.stderr) == (1, True), refused.stderr


def test_a_person_decides_on_a_request_that_is_held(trained: list[str]) -> None:
    def ask(*command: str) -> dict:
        answer = runner.invoke(app, [*command, "--json"])
        assert answer.exit_code == 0, answer.stderr
        return json.loads(answer.stdout)

    request = ask("forget", DATASET, "--record", trained[0], "--hold")
    assert request["state"] == "received"
    name = request["id"]
    assert runner.invoke(app, ["refuse", name, "--ground", "a whim"]).exit_code == 2
    assert runner.invoke(app, ["refuse", name, "--ground", "other"]).exit_code == 1
    refused = ask("refuse", name, "--ground", "17(3)(b)", "--explanation", "taxes")
    assert (refused["state"], refused["explanation"]) == ("refused", "taxes")
    waited = runner.invoke(app, ["status", name, "--wait"])
    assert (waited.exit_code, "refused: 17(3)(b)" in waited.stderr) == (1, True)
    assert ask("reopen", name)["state"] == "received"
    assert ask("extend", name, "--reason", "holidays")["due_at"] > request["due_at"]
    assert ask("accept", name)["state"] == "accepted"
    assert runner.invoke(app, ["refuse", name, "--ground", "17(3)(b)"]).exit_code == 1


def test_a_file_of_corrected_rows_replaces_what_is_forgotten(
    trained: list[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    corrected = {
        "record_id": trained[0],
        "subject_id": "subject-0",
        "features": [1, 2.5],
        "label": 0,
    }
    rows.write_text(f"{json.dumps(corrected)}\n\n")
    command = ["forget", DATASET, "--record", trained[0], "--json"]

    answer = runner.invoke(app, [*command, "--replacement", str(rows)])

    assert json.loads(answer.stdout)["replacements"] == 1
    rows.write_text("no JSON, but a secret")
    answer = runner.invoke(app, [*command, "--replacement", str(rows)])
    assert (answer.exit_code, "secret" in answer.stderr) == (1, False)
    assert len(_requests()) == 1
