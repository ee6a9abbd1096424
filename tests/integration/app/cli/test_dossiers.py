"""Dossiers: collected from a real service, and verified offline; a change anywhere shows."""

import base64
import html
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.delivery.publishing import repository as publishing
from app.domain.errors import VerificationError
from app.evidence.certificates import dossier
from app.evidence.questions import NOT_ANSWERED, questions
from app.registry import repository as registry
from app.runtime.settings import FolderPublisher, Settings
from app.services import Services
from tests.support.logbook import sign
from tests.support.trust import trust_in
from tests.support.workshop import DATASET, Workshop

runner = CliRunner()


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    publishers = {"shelf": FolderPublisher(kind="folder", path=tmp_path)}
    return settings.model_copy(update={"publishers": publishers})


@pytest.fixture
def trusted(services: Services, tmp_path: Path) -> Path:
    path = tmp_path / "trusted-keys.json"
    path.write_bytes(trust_in(services))
    return path


def _run(*arguments: object, code: int = 0) -> str:
    answer = runner.invoke(app, [str(each) for each in arguments])
    assert answer.exit_code == code, answer.output
    return answer.output


def _files(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def case(served: None, workshop: Workshop, tmp_path: Path) -> tuple[str, Path]:
    """A request that was met, and the receipt that its sender kept."""
    workshop.train()
    receipt = tmp_path / "receipt.json"
    learned = workshop.split()[0][0]
    request = json.loads(_run("forget", DATASET, "--record", learned, "--receipt", receipt))
    workshop.unlearn()
    workshop.services.clean_up()
    sign(workshop.services)
    return request["id"], receipt


def test_a_requests_dossier_holds_and_answers_every_question(
    case: tuple[str, Path], trusted: Path, tmp_path: Path
) -> None:
    request, receipt = case
    out, audit = tmp_path / "dossier.zip", tmp_path / "audit.json"
    audit.write_text("{}")
    _run("dossier", "request", request, "--receipt", receipt, "--audit", audit, "--out", out)
    told = _run("verify", out, "--trusted", trusted)
    assert f"the dossier of request {request} holds" in told
    assert "1, each covered by every certificate" in told

    files = _files(out.read_bytes())
    assert {"certificates/model.json", "receipts/receipt.json", "audits/audit.json"} < set(files)
    history = files["history.txt"].decode()
    for what in ("request accepted", "request completed", "certificate issued"):
        assert what in history
    page = files["answers.html"].decode()
    assert page.count("<tr id=") == len(questions()) == 50
    for said in ("completed 20", "retraining", "model: certified", "predicate.guarantee"):
        assert said in page
    assert page.count(f"<td>{NOT_ANSWERED}</td>") >= 15
    facts = dossier.verify_dossier(out.read_bytes(), trusted=trusted.read_bytes())
    assert facts["open"] == []
    assert facts["requests"][0]["state"] == "completed"


def test_a_reader_answers_a_checklist_from_one_dossier(
    served: None, workshop: Workshop, tmp_path: Path
) -> None:
    """Each question says where its answer is; who follows it needs no knowledge of the code."""
    workshop.train()
    services, learned = workshop.services, workshop.split()[0][0]
    with workshop.transaction() as session:
        place = publishing.want(session, registry.model_named(session, "model", lock=True), "shelf")
    assert services.publisher().settle(place.id)
    registered = ("--version", "1", "--contact", "ml", "--callback", "https://shop.example/gone")
    bot = json.loads(_run("model", "add-derivative", "model", "bot", *registered))
    rows, receipt, audit = (
        tmp_path / name for name in ("rows.jsonl", "receipt.json", "audit.json")
    )
    ids = {"record_id": learned, "subject_id": "subject-0"}
    rows.write_text(json.dumps(ids | {"features": [0.0, 0.0], "label": 0}))
    audit.write_text("{}")
    asked = _run(
        *("forget", DATASET, "--record", learned, "--replacement", rows, "--receipt", receipt)
    )
    request = json.loads(asked)["id"]
    _run("extend", request, "--reason", "many at once")
    workshop.unlearn()
    assert services.publisher().settle(place.id)
    services.clean_up()
    _run("model", "acknowledge", "model", bot["id"], "deleted it")
    sign(services)
    out = tmp_path / "dossier.zip"
    _run("dossier", "request", request, "--receipt", receipt, "--audit", audit, "--out", out)
    keys = tmp_path / "keys.json"
    keys.write_bytes(trust_in(services))
    assert "holds" in _run("verify", out, "--trusted", keys)

    checklist = json.loads((Path(__file__).parent / "checklist.json").read_text())
    assert len({each["asked"] for each in checklist}) == len(checklist) == 25
    sources = {each["source"].split()[0] for each in checklist}
    assert sources == {"AISVS", "CNIL", "EDPB", "FTC", "GDPR", "HECVAT", "NIST"}
    files = _files(out.read_bytes())
    found = {each["asked"]: _at(files, each["place"]) for each in checklist}
    wrong = {
        each["asked"]: found[each["asked"]]
        for each in checklist
        if not re.fullmatch(each["answer"].replace("REQUEST", request), found[each["asked"]], re.S)
    }
    assert wrong == {}


def _at(files: dict[str, bytes], place: str) -> str:
    """Return what is at a place: a row of the page, or a JSON pointer, into what is signed, too."""
    name, _, where = place.partition("#")
    text = files[name].decode()
    if name.endswith(".html"):
        row = re.search(f'<tr id="{where}">(?:<td>.*?</td>){{2}}<td>(.*?)</td>', text, re.S)
        assert row is not None, place
        return html.unescape(row[1])
    if not where:
        return text
    value: Any = text
    for step in where.split("/")[1:]:
        if isinstance(value, str):
            value = json.loads(value if value.startswith("{") else base64.b64decode(value))
        value = value[int(step) if isinstance(value, list) else step]
    return value if isinstance(value, str) else json.dumps(value)


def test_a_change_anywhere_shows(case: tuple[str, Path], trusted: Path, tmp_path: Path) -> None:
    request, receipt = case
    out = tmp_path / "dossier.zip"
    _run("dossier", "request", request, "--receipt", receipt, "--out", out)
    whole, keys = out.read_bytes(), trusted.read_bytes()
    files = _files(whole)

    def refused(content: bytes) -> None:
        with pytest.raises(VerificationError):
            dossier.verify_dossier(content, trusted=keys)

    for name, content in files.items():
        others = {other: each for other, each in files.items() if other != name}
        refused(dossier.pack(others))
        refused(dossier.pack({**others, f"{name}2": content}))
        for place in (0, len(content) // 2, len(content) - 1):
            flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
            refused(dossier.pack({**others, name: flipped}))
        refused(dossier.pack({**others, name: content + b" "}))
    refused(dossier.pack({**files, "more.txt": b""}))
    for place in range(0, len(whole), 97):  # what no file holds: names, dates, sums of the zip
        refused(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    refused(whole + b"more")
    refused(whole[:-1])


def test_a_wrong_receipt_and_another_services_keys_are_refused(
    case: tuple[str, Path], trusted: Path, workshop: Workshop, tmp_path: Path
) -> None:
    request, receipt = case
    out = tmp_path / "dossier.zip"
    wrong = json.loads(receipt.read_text()) | {"record_ids": ["record-of-nobody"]}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(wrong))
    _run("dossier", "request", request, "--receipt", other, "--out", out)
    assert "FAIL  receipt" in _run("verify", out, "--trusted", trusted, code=1)
    keys = json.loads(trusted.read_text())
    keys["keys"][0]["compromised_since"] = "2000-01-01T00:00:00+00:00"
    trusted.write_text(json.dumps(keys))
    assert "FAIL" in _run("verify", out, "--trusted", trusted, code=1)
    refused = runner.invoke(
        app, ["dossier", "model", "model", "--receipt", str(receipt), "--out", str(out)]
    )
    assert (refused.exit_code, "belongs to the dossier of its request" in refused.stderr) == (
        1,
        True,
    )


def test_dossiers_of_a_model_and_of_a_destroyed_dataset(
    case: tuple[str, Path], trusted: Path, tmp_path: Path, workshop: Workshop
) -> None:
    out = tmp_path / "dossier.zip"
    _run("dossier", "model", "model", "--out", out)
    assert "holds" in _run("verify", out, "--trusted", trusted)
    assert "version published" in _files(out.read_bytes())["history.txt"].decode()
    _run("dataset", "destroy", DATASET, "--yes")
    workshop.services.clean_up()
    sign(workshop.services)
    _run("dossier", "dataset", DATASET, "--out", out)
    assert "holds" in _run("verify", out, "--trusted", trusted)
    files = _files(out.read_bytes())
    assert "dataset destroyed" in files["history.txt"].decode()
    assert "complete; 0 records left" in files["answers.html"].decode()


def test_a_team_answers_on_the_command_line(served: None, workshop: Workshop) -> None:
    workshop.train()
    registered = ("--version", "1", "--contact", "ml", "--callback", "https://shop.example/gone")
    made = json.loads(_run("model", "add-derivative", "model", "bot", *registered))
    workshop.archive()
    (told,) = json.loads(_run("model", "derivatives", "model"))
    assert (told["id"], told["told_at"] is not None) == (made["id"], True)
    done = json.loads(_run("model", "acknowledge", "model", made["id"], "deleted"))
    assert done["answer"] == "deleted"
