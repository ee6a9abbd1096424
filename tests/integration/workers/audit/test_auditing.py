"""Audits through the API: honest builds are consistent, sabotaged ones are contradicted.

An honest build is contradicted once in 10,000 times at the confidence of its test.
"""

import base64
import hashlib
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from app.access import audit_trail
from app.cli.commands import auditing as command
from app.cli.main import app
from app.client import ExpungeClient
from app.domain.errors import InvalidInputError, VerificationError
from app.domain.states import BlobState, Scope
from app.registry.datasets.columns.parquet import to_parquet
from app.services import Services
from app.storage.stores import key_store
from app.storage.tables import BlobRow
from benchmarks.audits_cases import (
    BUILDS,
    CANARIES,
    GUESSES,
    MODELS,
    NOISY,
    backbone,
    guesses_of,
    rows,
)
from tests.integration.app.cli.conftest import (
    _Bridge,
    served,  # noqa: F401
)
from tests.support.arrays import array_task
from tests.support.digits import DATASET, TASK, digits_parquet
from tests.support.dumps import stores_of
from tests.support.markers import Marker, files_below, places_with
from tests.support.opened import opened_objects
from tests.support.trust import trust_in
from workers.audit import auditing
from workers.audit.auditing import Audit, LeftBehindError
from workers.audit.canaries import Canaries, prepare
from workers.audit.report import Report

RIDGE, ENSEMBLE = MODELS["ridge head"], MODELS["ensemble of MLPs"]
CLIPPED, TREES = MODELS["MLP, noise at ε = 1"], MODELS["boosted trees"]
AT_ONCE = {
    "architecture": {"name": "linear_head"},
    "recipe": {"epochs": 5, "batch_size": 32},
    "policy": {"mechanism": "tracked_release", "epsilon": 8.0, "first_release": "none"},
}
HONEST = [*(of for name, of in MODELS.items() if name not in NOISY), AT_ONCE]
SABOTAGED = list(BUILDS["sabotaged"])
LEFT_IN_SUMS = SABOTAGED[0]
AUDITS = 10


@pytest.fixture
def define(api: TestClient, work: Callable[[], None]) -> Callable[..., None]:
    """Define the audited model, and wait for its first release."""

    def defined(**model: Any) -> None:
        assert api.post("/v1/datasets", json=DATASET).status_code == 201
        api.put("/v1/datasets/digits/records", content=digits_parquet(40))
        if "backbone" in model["architecture"]:
            definition, weights = backbone()
            assert api.post("/v1/backbones", json=definition).status_code == 201
            path = f"/v1/backbones/{definition['name']}/weights"
            assert api.put(path, content=weights).is_success
        whole = {"name": "digits", "dataset": "digits", "task": TASK, **model}
        answer = api.post("/v1/models", json=whole)
        assert answer.status_code == 201, answer.text
        work()

    return defined


@pytest.fixture
def auditor(api: TestClient) -> ExpungeClient:
    """The client of an auditor."""
    body = {"name": "auditor", "scopes": [Scope.AUDIT]}
    key = api.post("/v1/api-keys", json=body).json()["secret"]
    return ExpungeClient("http://testserver", key, transport=_Bridge(api))


@pytest.fixture
def audit(
    define: Callable[..., None],
    auditor: ExpungeClient,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
) -> Callable[..., Report]:
    """Audit a model of this definition; ``before`` is called with each thing to wait for."""
    names = (f"audit-{number}" for number in count(1))

    def carry_out(
        model: dict[str, Any], before: Callable[[str], object] = lambda _: None, **options: Any
    ) -> Report:
        name = next(names)
        if name == "audit-1":
            define(**model)

        def tell(what: str, run: object) -> None:
            if run is None:
                before(what)
                work()

        given = {"client": auditor, "rows": rows(), "guesses": GUESSES, "confidence": 0.95}
        return Audit(
            model="digits",
            trusted=trust_in(services),
            directory=tmp_path / "audited",
            canaries=CANARIES,
            tell=tell,
            **given | {"name": name} | options,
        ).run()

    return carry_out


def readable(services: Services) -> set[str]:
    """Return the stored objects whose keys are there."""
    with services.database.transaction() as session:
        left = session.query(BlobRow).filter(BlobRow.state != BlobState.SHREDDED)
        return {each.id for each in left}


@pytest.mark.parametrize("model", HONEST)
def test_an_honest_build_is_consistent_and_nothing_is_left(
    audit, api, work, services, model
) -> None:
    before: list[set[str]] = []
    report = audit(model, lambda _: before.append(readable(services)), confidence=0.9999)

    assert not report.contradicts, report.in_words()
    result = report.predicate["result"]
    assert (result["right_before"] is None) == (model is AT_ONCE)
    # At this confidence 33 of 40 must have been seen before; trees know nearly all.
    if model in (TREES, AT_ONCE):
        assert result["verdict"] == ("consistent" if model is TREES else "inconclusive")
    claim = report.predicate["claim"]
    assert claim["epsilon"] <= model.get("policy", {}).get("epsilon", 1.0)
    assert (claim["epsilon"] > 0) == (model in (CLIPPED, AT_ONCE))
    work()
    assert before[0] == readable(services) < before[-1]
    assert api.get("/v1/datasets/audit-1").json()["archived_at"]
    assert api.get("/v1/datasets/audit-1").json()["records"] == 0
    models = {each["name"]: each for each in api.get("/v1/models").json()["items"]}
    assert models.pop("digits")["archived_at"] is None
    assert all(each["archived_at"] for each in models.values())
    assert len(models) == (1 if model is ENSEMBLE else 2)


def test_no_canary_is_left_anywhere(audit, services, work, monkeypatch, caplog) -> None:
    """Postgres' own log of writes is not read: it is overwritten in time."""
    made: list[Canaries] = []
    monkeypatch.setattr(
        auditing, "prepare", lambda *given: made.append(prepare(*given)) or made[-1]
    )
    images = np.random.default_rng().integers(256, size=400 * 64, dtype=np.uint8)
    own = rows().set_column(0, "features", pa.FixedSizeListArray.from_arrays(images, 64))
    keys, blobs = key_store(services.settings), services.settings.data_dir / "blobs"
    there: list[set[str]] = []

    def search(what: str = "") -> set[str]:
        markers = [Marker("id", each.encode()) for each in made[0].ids]
        for each in made[0].contents:
            pixels = each.column("features").combine_chunks().flatten().to_numpy()
            markers += [Marker("content", bytes(row)) for row in pixels.reshape(-1, 64)]
        opened = opened_objects(blobs, keys, services.database)
        files = {str(path): path.read_bytes() for path in files_below(blobs)}
        places = [*stores_of(services), *opened.items(), *files.items(), ("log", caplog.text)]
        if what == "forgetting":
            contents = [each for each in markers if each.name == "content"]
            there.append(places_with(places, contents))
        return places_with(places, markers)

    audit(RIDGE, search, rows=own)
    work()
    assert there[0]
    assert search() == set()


def sabotaged(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Sabotage the worker; return what to audit."""
    model, sabotage = BUILDS["sabotaged"][name]
    stages = [""]
    assert sabotage is not None
    sabotage(monkeypatch.setattr, stages)
    return {"model": MODELS[model], "guesses": guesses_of(model), "before": stages.append}


@pytest.mark.parametrize("build", SABOTAGED)
def test_a_sabotaged_build_is_contradicted(audit, monkeypatch, build) -> None:
    report = audit(**sabotaged(build, monkeypatch))

    assert report.contradicts, report.in_words()
    assert report.predicate["result"]["epsilon_lower_bound"] > 0


def test_generated_rows_show_it_as_well(audit, monkeypatch) -> None:
    assert audit(**sabotaged(LEFT_IN_SUMS, monkeypatch), rows=None).contradicts


@pytest.mark.nightly
@pytest.mark.parametrize("build", SABOTAGED)
def test_sabotage_is_found_nearly_always(audit, monkeypatch, build) -> None:
    given = sabotaged(build, monkeypatch)
    assert sum(audit(**given).contradicts for _ in range(AUDITS)) >= AUDITS - 1


@pytest.mark.nightly
@pytest.mark.parametrize("model", HONEST)
def test_honest_builds_are_contradicted_as_rarely_as_stated(audit, model) -> None:
    """Each is with probability 0.05 at most: more than 4 of 10 are once in 16,000 times."""
    assert sum(audit(model).contradicts for _ in range(AUDITS)) <= 4


def test_canaries_that_were_never_learned_make_an_audit_inconclusive(
    audit, auditor, monkeypatch
) -> None:
    """A service that recognises them and learns others in their place has nothing to forget."""
    push, pushed = auditor.push_records, []

    def push_others(name: str, content: bytes) -> Any:
        pushed.append(pq.read_table(BytesIO(content)))
        ids = pushed[-1]["record_id"]
        others = pushed[0].slice(0, len(ids))
        return push(name, to_parquet(others.set_column(0, "record_id", ids)))

    monkeypatch.setattr(auditor, "push_records", push_others)
    report = audit(RIDGE, confidence=0.9999)
    assert len(pushed) == 2
    assert report.predicate["result"]["verdict"] == "inconclusive", report.in_words()


@pytest.mark.parametrize(
    "instead",
    [
        {"architecture": {"name": "ridge_head", "options": {"feature_range": 2.0}}},
        {"task": array_task(8, 8, classes=10, dtype="uint8", scale=0.25)},
    ],
)
def test_a_copy_of_another_definition_is_not_audited(audit, auditor, monkeypatch, instead) -> None:
    define = auditor.define_model
    monkeypatch.setattr(auditor, "define_model", lambda body: define(body | instead))
    with pytest.raises(InvalidInputError, match="as another model than was defined"):
        audit(RIDGE)


def test_a_copy_that_promises_less_is_not_audited(audit, auditor, monkeypatch) -> None:
    define = auditor.define_model
    monkeypatch.setattr(
        auditor,
        "define_model",
        lambda body: define(body | {"policy": body["policy"] | {"epsilon": 8.0}}),
    )
    with pytest.raises(InvalidInputError, match="is worth less"):
        audit(CLIPPED)


def test_a_certificate_of_another_request_is_none_of_the_canaries(
    audit, auditor, monkeypatch
) -> None:
    forget = auditor.forget
    monkeypatch.setattr(
        auditor,
        "forget",
        lambda name, record_ids: (
            forget(name, record_ids=record_ids)
            | {"receipt_salt": base64.b64encode(bytes(32)).decode()}
        ),
    )
    with pytest.raises(VerificationError, match=r"^receipt"):
        audit(RIDGE)


@pytest.mark.parametrize("stage", ["training audit-1", "forgetting"])
def test_an_interrupted_audit_archives_what_it_made(audit, api, stage) -> None:
    def interrupt(what: str) -> None:
        if what == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(RIDGE, interrupt)
    for path in ("models/audit-1", "models/audit-1-reference", "datasets/audit-1"):
        assert api.get(f"/v1/{path}").json()["archived_at"]


@pytest.mark.parametrize("taken", ["digits", "digits-mlp"])
def test_what_has_the_audits_name_is_left_alone(audit, api, taken) -> None:
    if taken == "digits-mlp":
        assert api.post("/v1/datasets", json=DATASET | {"name": taken}).status_code == 201
    with pytest.raises(InvalidInputError, match=f"'{taken}' exists already"):
        audit(RIDGE, name=taken)
    assert api.get(f"/v1/datasets/{taken}").json()["archived_at"] is None
    assert api.get("/v1/models/digits").json()["archived_at"] is None


def test_what_cannot_be_archived_is_named(audit, auditor, monkeypatch) -> None:
    def refuse(_name: str) -> None:
        raise ValueError("an answer that is no JSON")

    monkeypatch.setattr(auditor, "archive_dataset", refuse)
    with pytest.raises(LeftBehindError, match=r"expunge dataset archive audit-1$"):
        audit(RIDGE)


def test_a_training_that_fails_is_told_and_archived(audit, api) -> None:
    def fail(what: str) -> None:
        if what == "training audit-1":
            run = api.get("/v1/models/audit-1").json()["latest_run"]["id"]
            assert api.post(f"/v1/runs/{run}/cancel").status_code == 200

    with pytest.raises(InvalidInputError, match="the training of the copy cancelled"):
        audit(RIDGE, fail)
    assert api.get("/v1/models/audit-1").json()["archived_at"]


@pytest.mark.usefixtures("served")
def test_the_command_writes_a_report_that_verifies(
    define, services, work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(**RIDGE)
    sabotaged(LEFT_IN_SUMS, monkeypatch)

    @contextmanager
    def progress() -> Iterator[Any]:
        yield lambda run, _what: work() if run is None else None

    monkeypatch.setattr(command, "run_progress", progress)
    monkeypatch.chdir(tmp_path)
    pq.write_table(rows(), "rows.parquet")
    runner = CliRunner()
    Path("trusted-keys.json").write_bytes(trust_in(services))
    options = ["--data", "rows.parquet", "--canaries", "60", "--trusted", "trusted-keys.json"]
    answer = runner.invoke(app, ["audit", "digits", *options])
    assert answer.exit_code == 1, answer.output
    assert "Verdict on digits" in answer.output
    assert "contradicted" in answer.output
    with services.database.snapshot() as session:
        (logged,) = audit_trail.newest_entries(session, limit=9, kind="model.audited")
    assert logged.facts["verdict"] == "contradicted"
    digest = hashlib.sha256(Path("audit/audit.json").read_bytes()).hexdigest()
    assert logged.facts["report_sha256"] == digest
    assert Path("auditor-key.pem").stat().st_mode & 0o077 == 0
    page = Path("audit/audit.html").read_text()
    assert "<svg" in page
    assert "contradicted" in page
    weights = next(Path("audit").glob("*.safetensors"))
    checked = ["verify-audit", "audit/audit.json", "--key", "audit/auditor.pem"]
    certificate = weights.with_name(f"{weights.stem}.certificate.json")
    files = ["--weights", str(weights), "--certificate", str(certificate)]
    answer = runner.invoke(app, [*checked, *files, "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert [each["step"] for each in found["steps"]] == [
        *("signature", "statement", "weights", "certificate", "result")
    ]
    assert found["verdict"] == "contradicted"
    answer = runner.invoke(app, [*checked, "--weights", "rows.parquet"])
    assert answer.exit_code == 1
    assert "3. FAIL  weights: another file" in answer.output


@pytest.mark.usefixtures("served")
def test_a_terminated_command_archives_what_it_made(
    define, api, work, services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(**RIDGE)

    def update(run: object, what: str) -> None:
        if what == "training copy":
            signal.raise_signal(signal.SIGHUP)  # the worker here has handlers of the others
        if run is None:
            work()

    @contextmanager
    def progress() -> Iterator[Any]:
        yield update

    monkeypatch.setattr(command, "run_progress", progress)
    monkeypatch.chdir(tmp_path)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    Path("trusted-keys.json").write_bytes(trust_in(services))
    given = ["--name", "copy", "--canaries", "10", "--trusted", "trusted-keys.json"]
    answer = CliRunner().invoke(app, ["audit", "digits", *given])
    assert answer.exit_code == 130, answer.output
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    for path in ("models/copy", "models/copy-reference", "datasets/copy"):
        assert api.get(f"/v1/{path}").json()["archived_at"]
