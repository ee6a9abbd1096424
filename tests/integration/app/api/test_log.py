"""``/v1/log`` as an outsider verifies it, and ``/v1/audit``: who did what."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine, select, text

from app.cli.application import create_app
from app.domain.architectures import ArchitectureSpec
from app.domain.merkle import leaf_hash, verify_consistency, verify_inclusion
from app.domain.states import Scope
from app.evidence import log
from app.evidence.certificates.note import Checkpoint, NoteKey, open_checkpoint, origin_of
from app.evidence.log import actor
from app.evidence.log.tables import LogEntryRow
from app.operations import fsck
from app.runtime.settings import Settings
from app.services import Services
from tests.integration.app.api.conftest import CallerOf
from tests.support.exact_heads import carry_out
from tests.support.logbook import bodies, forging, sign, write
from tests.support.patience import PATIENCE_S
from tests.support.serving import serve
from tests.support.workshop import DATASET, TASK, Workshop, records_parquet


@pytest.fixture
def written(services: Services, api: TestClient) -> list[bytes]:
    """A log of many entries, signed; its texts."""
    write(services, 20)
    sign(services)
    return bodies(services)


def _checkpoint(api: TestClient) -> Checkpoint:
    answer = api.get("/v1/log/checkpoint")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    keys = api.get("/.well-known/expunge-keys.json").json()["keys"]
    (key,) = (key for key in keys if key["purpose"] == "certificates")
    public_key = load_pem_public_key(key["pem"].encode())
    return open_checkpoint(answer.content, [NoteKey(origin_of(answer.content), public_key)])


def _bytes(proof: list[str]) -> list[bytes]:
    return [bytes.fromhex(hashed) for hashed in proof]


def test_an_outsider_verifies_an_entry_against_a_signed_checkpoint(
    api: TestClient, written: list[bytes]
) -> None:
    checkpoint = _checkpoint(api)
    assert checkpoint.size == len(written)
    for index in (0, 7, len(written) - 1):
        entry = api.get(f"/v1/log/entries/{index}").json()
        assert entry["body"].encode() == written[index]
        places = {"index": index, "size": checkpoint.size}
        answer = api.get("/v1/log/proofs/inclusion", params=places).json()
        assert answer["leaf_hash"] == entry["leaf_hash"] == leaf_hash(written[index]).hex()
        assert answer["root"] == checkpoint.root.hex()
        verify_inclusion(
            leaf=leaf_hash(entry["body"].encode()),
            root=checkpoint.root,
            proof=_bytes(answer["proof"]),
            **places,
        )


def test_an_outsider_verifies_that_nothing_was_rewritten(
    services: Services, api: TestClient, written: list[bytes]
) -> None:
    old = _checkpoint(api)
    write(services, 5, 8, sign=True)
    new = _checkpoint(api)
    answer = api.get("/v1/log/proofs/consistency", params={"from": old.size, "to": new.size})
    assert answer.status_code == 200
    found = answer.json()
    assert (found["old_root"], found["new_root"]) == (old.root.hex(), new.root.hex())
    verify_consistency(
        old_size=old.size,
        old_root=old.root,
        new_size=new.size,
        new_root=new.root,
        proof=_bytes(found["proof"]),
    )


def test_entries_are_listed_page_by_page(api: TestClient, written: list[bytes]) -> None:
    found, start, pages = [], 0, 0
    while start is not None:
        answer = api.get("/v1/log/entries", params={"start": start, "limit": 7}).json()
        found += answer["entries"]
        start = answer["next"]
        pages += 1
    assert pages == (len(written) + 6) // 7
    assert [entry["index"] for entry in found] == list(range(len(written)))
    assert [entry["body"].encode() for entry in found] == written
    beyond = api.get("/v1/log/entries", params={"start": len(written)}).json()
    assert beyond == {"entries": [], "next": None}


ABSENT = [
    ("entries/1000", 404, "not-found"),
    ("entries/-1", 404, "not-found"),
    (f"entries/{2**70}", 404, "not-found"),
    ("entries/first", 422, "invalid-input"),
    ("entries?start=-1", 422, "invalid-input"),
    ("entries?limit=1001", 422, "invalid-input"),
    ("proofs/inclusion?index=0", 422, "invalid-input"),
    ("proofs/inclusion?index=5&size=5", 422, "invalid-input"),
    ("proofs/inclusion?index=0&size=1000", 422, "invalid-input"),
    (f"proofs/inclusion?index=0&size={2**63}", 422, "invalid-input"),
    ("proofs/inclusion?index=-1&size=5", 422, "invalid-input"),
    ("proofs/consistency?from=3&to=2", 422, "invalid-input"),
    ("proofs/consistency?from=3&to=1000", 422, "invalid-input"),
]


def test_what_is_not_there_is_a_problem(
    api: TestClient, written: list[bytes], subtests: pytest.Subtests
) -> None:
    for path, status, problem in ABSENT:
        with subtests.test(path=path, status=status):
            answer = api.get(f"/v1/log/{path}")
            assert answer.status_code == status
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["type"] == f"urn:expunge:problem:{problem}"


def test_before_the_first_checkpoint_there_is_none(api: TestClient) -> None:
    answer = api.get("/v1/log/checkpoint")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:expunge:problem:not-ready")


def test_a_damaged_log_says_so(api: TestClient, app_database: Engine, written: list[bytes]) -> None:
    with forging(app_database) as connection:
        connection.execute(text("DELETE FROM tree_nodes"))
    answer = api.get("/v1/log/proofs/inclusion?index=0&size=20")
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:expunge:problem:corrupt-log")


@pytest.mark.parametrize(
    "path",
    ["checkpoint", "entries", "entries/0", "proofs/inclusion?index=0&size=1",
     "proofs/consistency?from=0&to=1"],
)  # fmt: skip
def test_the_log_is_read_with_its_own_scope(
    caller_of, services: Services, written: list[bytes], path: str
) -> None:
    assert caller_of(Scope.LOG_READ).get(f"/v1/log/{path}").status_code == 200
    assert caller_of(Scope.MODELS_READ).get(f"/v1/log/{path}").status_code == 403
    assert caller_of().get(f"/v1/log/{path}").status_code == 401


Call = Callable[[TestClient, Workshop], object]
SUBJECT_REQUEST = "a7551968-d5d6-44b2-9831-815ac9017798"


@pytest.fixture
def settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("EXPUNGE_IMPORT_PREFIXES", "s3://bucket")
    shelf = {"shelf": {"kind": "folder", "path": "/nowhere"}}
    monkeypatch.setenv("EXPUNGE_PUBLISHERS", json.dumps(shelf))
    return Settings()


@pytest.fixture
def admin(caller_of: CallerOf) -> TestClient:
    return caller_of(Scope.ADMIN)


def _id_of(client: TestClient) -> str:
    keys = client.get("/v1/api-keys").json()["items"]
    return next(key["id"] for key in keys if key["name"] == "caller")


def _entries(services: Services) -> list[dict]:
    with services.database.transaction() as session:
        query = select(LogEntryRow.body).order_by(LogEntryRow.index)
        return [json.loads(body) for body in session.scalars(query)]


def _failed_run(workshop: Workshop) -> str:
    workshop.define()
    held = workshop.begun()
    workshop.give_up(held)
    return held.run_id


def _failed_request(workshop: Workshop) -> str:
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held)
    return request_id


def _open_request(workshop: Workshop) -> str:
    workshop.train()
    return workshop.forget(workshop.split()[0][0])


def _weights() -> bytes:
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(head).to_bytes(8, "little") + head + b"\0" * 4


def _dataset(api: TestClient, _: Workshop) -> object:
    body = {"name": "d", "columns": {"x": "float32"}, "record_id": "id"}
    return api.post("/v1/datasets", json=body)


def _alter(api: TestClient, _: Workshop) -> object:
    return api.patch(f"/v1/datasets/{DATASET}", json={"columns": {"more": "int8?"}})


def _model(api: TestClient, _: Workshop) -> object:
    body = {"name": "m", "dataset": DATASET, "task": TASK, "architecture": {"name": "logistic"}}
    return api.post("/v1/models", json=body)


def _policy(api: TestClient, workshop: Workshop) -> object:
    workshop.train()
    return api.patch("/v1/models/model", json={"policy": {"deadline_s": 3600.0}})


def _backbone(api: TestClient, _: Workshop) -> object:
    body = {
        "name": "b",
        "architecture": {"name": "logistic"},
        "input": {"shape": [1]},
        "classes": 2,
        "source": "a paper",
    }
    return api.post("/v1/backbones", json=body)


def _backbone_weights(api: TestClient, workshop: Workshop) -> object:
    _backbone(api, workshop)
    return api.put("/v1/backbones/b/weights", content=_weights())


def _upload(api: TestClient, workshop: Workshop) -> object:
    workshop.define(upload=True)
    return api.put("/v1/models/model/weights", content=_weights())


def _push(api: TestClient, _: Workshop) -> object:
    return api.put(f"/v1/datasets/{DATASET}/records", content=records_parquet(4, first=100))


def _forget(api: TestClient, _: Workshop) -> object:
    return api.post("/v1/forget-requests", json={"dataset": DATASET, "record_ids": ["record-1"]})


def _held(api: TestClient) -> str:
    body = {"dataset": DATASET, "record_ids": ["record-1"], "hold": True}
    return f"/v1/forget-requests/{api.post('/v1/forget-requests', json=body).json()['id']}"


def _accept(api: TestClient, _: Workshop) -> object:
    return api.post(f"{_held(api)}/accept")


def _refuse(api: TestClient, _: Workshop) -> object:
    return api.post(f"{_held(api)}/refuse", json={"ground": "17(3)(b)"})


def _reopen(api: TestClient, _: Workshop) -> object:
    held = _held(api)
    api.post(f"{held}/refuse", json={"ground": "17(3)(b)"})
    return api.post(f"{held}/reopen")


def _extend(api: TestClient, _: Workshop) -> object:
    return api.post(f"{_held(api)}/extend", json={"reason": "Several systems are searched."})


def _cancel(api: TestClient, workshop: Workshop) -> object:
    return api.delete(f"/v1/forget-requests/{_open_request(workshop)}")


def _retry(api: TestClient, workshop: Workshop) -> object:
    return api.post(f"/v1/forget-requests/{_failed_request(workshop)}/retry")


def _retry_run(api: TestClient, workshop: Workshop) -> object:
    return api.post(f"/v1/runs/{_failed_run(workshop)}/retry")


def _cancel_run(api: TestClient, workshop: Workshop) -> object:
    workshop.define()
    return api.post(f"/v1/runs/{workshop.active_run()}/cancel")


def _create_key(api: TestClient, _: Workshop) -> object:
    return api.post("/v1/api-keys", json={"name": "k", "scopes": ["log:read"]})


def _revoke_key(api: TestClient, workshop: Workshop) -> object:
    return api.delete(f"/v1/api-keys/{workshop.key_id}")


def _rotate_secret(api: TestClient, _: Workshop) -> object:
    return api.post("/v1/callback-secret/rotate")


def _redeliver(api: TestClient, workshop: Workshop) -> object:
    workshop.train()
    urls = ["https://privacy.example/expunge"]
    workshop.forget(workshop.split()[0][0], status_callback_urls=urls)
    (event,) = api.get("/v1/callbacks").json()["items"]
    return api.post(f"/v1/callbacks/{event['id']}/redeliver")


def _subject_request(api: TestClient, workshop: Workshop) -> httpx.Response:
    workshop.train()
    body = {
        "regulation": "gdpr",
        "subject_request_id": SUBJECT_REQUEST,
        "subject_request_type": "erasure",
        "submitted_time": "2026-01-01T00:00:00Z",
        "api_version": "2.0",
        "subject_identities": [
            {
                "identity_type": "controller_customer_id",
                "identity_value": "subject-1",
                "identity_format": "raw",
            }
        ],
    }
    return api.post("/opendsr/v2/requests", json=body)


def _cancel_subject_request(api: TestClient, workshop: Workshop) -> object:
    assert _subject_request(api, workshop).status_code == 201
    return api.delete(f"/opendsr/v2/requests/{SUBJECT_REQUEST}")


def _retrain(api: TestClient, workshop: Workshop) -> object:
    workshop.train()
    return api.post("/v1/models/model/retrain")


def _refill(api: TestClient, workshop: Workshop) -> object:
    ensemble = ArchitectureSpec("ensemble", members=4, of=ArchitectureSpec("logistic"))
    workshop.define(
        architecture=ensemble,
        mechanism="auto",
        minimum_members=2,
        refill_after_s=None,
        refill_at=None,
    )
    carry_out(workshop)
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    carry_out(workshop)
    return api.post("/v1/models/model/refill")


def _archive_model(api: TestClient, workshop: Workshop) -> object:
    workshop.train()
    return api.post("/v1/models/model/archive")


def _delete_model(api: TestClient, workshop: Workshop) -> object:
    workshop.define(upload=True)
    return api.delete("/v1/models/model")


def _archive_dataset(api: TestClient, _: Workshop) -> object:
    return api.post(f"/v1/datasets/{DATASET}/archive")


def _delete_dataset(api: TestClient, workshop: Workshop) -> object:
    _dataset(api, workshop)
    return api.delete("/v1/datasets/d")


def _destroy(api: TestClient, workshop: Workshop) -> object:
    _model(api, workshop)
    return api.post("/v1/datasets/people/destroy", json={})


def _archive_backbone(api: TestClient, workshop: Workshop) -> object:
    _backbone_weights(api, workshop)
    return api.post("/v1/backbones/b/archive")


def _delete_backbone(api: TestClient, workshop: Workshop) -> object:
    _backbone(api, workshop)
    return api.delete("/v1/backbones/b")


def _import(api: TestClient, workshop: Workshop) -> object:
    _dataset(api, workshop)
    return api.post("/v1/datasets/d/imports", json={"url": "s3://bucket/exports/a.parquet"})


def _cancel_import(api: TestClient, workshop: Workshop) -> object:
    imported = _import(api, workshop).json()["id"]  # type: ignore[attr-defined]
    return api.post(f"/v1/datasets/d/imports/{imported}/cancel")


def _retry_import(api: TestClient, workshop: Workshop) -> object:
    imported = _cancel_import(api, workshop).json()["id"]  # type: ignore[attr-defined]
    return api.post(f"/v1/datasets/d/imports/{imported}/retry")


def _derivative(api: TestClient, workshop: Workshop) -> httpx.Response:
    workshop.train()
    body = {
        "name": "bot",
        "version": 1,
        "contact": "ml@shop.example",
        "callback": "https://shop.example/withdrawn",
    }
    return api.post("/v1/models/model/derivatives", json=body)


def _acknowledge(api: TestClient, workshop: Workshop) -> object:
    derivative = _derivative(api, workshop).json()["id"]
    workshop.archive()
    path = f"/v1/models/model/derivatives/{derivative}/acknowledge"
    return api.post(path, json={"answer": "deleted"})


def _publish(api: TestClient, workshop: Workshop) -> object:
    _model(api, workshop)
    return api.put("/v1/models/m/targets/shelf")


def _unpublish(api: TestClient, workshop: Workshop) -> object:
    _publish(api, workshop)
    return api.delete("/v1/models/m/targets/shelf")


def _audit(api: TestClient, workshop: Workshop) -> object:
    _model(api, workshop)
    report = {"report_sha256": "0" * 64, "verdict": "consistent"}
    return api.post("/v1/models/m/audits", json=report)


CHANGES: dict[str, tuple[Call, str]] = {
    "POST /v1/models/{name}/audits": (_audit, "model.audited"),
    "POST /v1/datasets/{name}/imports": (_import, "import.queued"),
    "POST /v1/datasets/{name}/imports/{import_id}/cancel": (_cancel_import, "import.cancelled"),
    "POST /v1/datasets/{name}/imports/{import_id}/retry": (_retry_import, "import.requeued"),
    "POST /v1/datasets": (_dataset, "dataset.defined"),
    "PATCH /v1/datasets/{name}": (_alter, "dataset.altered"),
    "PUT /v1/datasets/{name}/records": (_push, "records.pushed"),
    "POST /v1/datasets/{name}/archive": (_archive_dataset, "dataset.archived"),
    "POST /v1/datasets/{name}/destroy": (_destroy, "dataset.destroyed"),
    "DELETE /v1/datasets/{name}": (_delete_dataset, "dataset.deleted"),
    "POST /v1/models": (_model, "model.defined"),
    "PATCH /v1/models/{name}": (_policy, "policy.changed"),
    "PUT /v1/models/{name}/weights": (_upload, "weights.imported"),
    "POST /v1/models/{name}/retrain": (_retrain, "run.queued"),
    "POST /v1/models/{name}/refill": (_refill, "run.queued"),
    "POST /v1/models/{name}/archive": (_archive_model, "model.archived"),
    "PUT /v1/models/{name}/targets/{target}": (_publish, "placement.wanted"),
    "DELETE /v1/models/{name}/targets/{target}": (_unpublish, "placement.unwanted"),
    "POST /v1/models/{name}/derivatives": (_derivative, "derivative.registered"),
    "POST /v1/models/{name}/derivatives/{derivative_id}/acknowledge": (
        _acknowledge,
        "derivative.acknowledged",
    ),
    "DELETE /v1/models/{name}": (_delete_model, "model.deleted"),
    "POST /v1/backbones": (_backbone, "backbone.defined"),
    "PUT /v1/backbones/{name}/weights": (_backbone_weights, "backbone.uploaded"),
    "POST /v1/backbones/{name}/archive": (_archive_backbone, "backbone.archived"),
    "DELETE /v1/backbones/{name}": (_delete_backbone, "backbone.deleted"),
    "POST /v1/forget-requests": (_forget, "request.accepted"),
    "DELETE /v1/forget-requests/{request_id}": (_cancel, "request.cancelled"),
    "POST /v1/forget-requests/{request_id}/accept": (_accept, "request.accepted"),
    "POST /v1/forget-requests/{request_id}/refuse": (_refuse, "request.refused"),
    "POST /v1/forget-requests/{request_id}/reopen": (_reopen, "request.received"),
    "POST /v1/forget-requests/{request_id}/extend": (_extend, "request.extended"),
    "POST /v1/forget-requests/{request_id}/retry": (_retry, "request.accepted"),
    "POST /v1/runs/{run_id}/cancel": (_cancel_run, "run.cancelled"),
    "POST /v1/runs/{run_id}/retry": (_retry_run, "run.queued"),
    "POST /v1/callback-secret/rotate": (_rotate_secret, "callback_secret.rotated"),
    "POST /v1/callbacks/{callback_id}/redeliver": (_redeliver, "callback.redelivered"),
    "POST /opendsr/v2/requests": (_subject_request, "subject_request.received"),
    "DELETE /opendsr/v2/requests/{subject_request_id}": (
        _cancel_subject_request,
        "request.cancelled",
    ),
    "POST /v1/api-keys": (_create_key, "key.created"),
    "DELETE /v1/api-keys/{key_id}": (_revoke_key, "key.revoked"),
}
CHANGE_NOTHING = {"POST /v1/plans", "POST /v1/forget-requests/preview", "POST /v1/dossiers"}


def test_every_operation_that_changes_something_is_tried(services: Services) -> None:
    app: FastAPI = create_app(services)
    changing = {
        f"{method.upper()} {path}"
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if method != "get"
    }
    assert changing == set(CHANGES) | CHANGE_NOTHING


@pytest.mark.parametrize("operation", sorted(CHANGES))
def test_a_change_is_logged_under_its_caller(
    services: Services, admin: TestClient, workshop: Workshop, operation: str
) -> None:
    call, kind = CHANGES[operation]
    before = len(_entries(services))
    answer = call(admin, workshop)
    assert answer.status_code < 300, answer.text

    caller = _id_of(admin)
    by_caller = [entry["kind"] for entry in _entries(services)[before:] if entry["by"] == caller]
    assert kind in by_caller


def test_what_follows_from_a_change_is_the_services_own(
    services: Services, admin: TestClient, workshop: Workshop
) -> None:
    _forget(admin, workshop)
    services.clean_up()

    by = {entry["kind"]: entry["by"] for entry in _entries(services)}
    assert by["request.accepted"] == _id_of(admin)
    assert by["records.erased"] == by["request.completed"] == actor.SERVICE


def test_the_dispatcher_and_the_workers_are_the_service(
    services: Services, workshop: Workshop
) -> None:
    workshop.train()
    by = {entry["kind"]: entry["by"] for entry in _entries(services)}
    assert by["run.leased"] == by["version.published"] == actor.SERVICE


def test_a_caller_does_not_outlive_the_call(services: Services, caller_of: CallerOf) -> None:
    one, other = caller_of(Scope.ADMIN), caller_of(Scope.DATA_WRITE)
    for number, client in enumerate((one, other, one)):
        body = {"name": f"d{number}", "columns": {"x": "float32"}, "record_id": "id"}
        assert client.post("/v1/datasets", json=body).status_code == 201
    by = [e["by"] for e in _entries(services) if e["kind"] == "dataset.defined"]
    assert by[0] == by[2] != by[1]
    assert actor.current() == actor.SERVICE


def test_callers_at_the_same_time_are_not_mixed_up(services: Services, caller_of: CallerOf) -> None:
    """On a real server, with connections that are kept."""
    keys = [caller_of(Scope.DATA_WRITE).headers["Authorization"] for _ in range(4)]

    def define_many(url: str, number: int) -> None:
        with httpx.Client(
            base_url=url, headers={"Authorization": keys[number]}, timeout=PATIENCE_S
        ) as client:
            for turn in range(10):
                body = {"name": f"d{number}-{turn}", "columns": {"x": "float32"}, "record_id": "id"}
                assert client.post("/v1/datasets", json=body).status_code == 201

    with serve(create_app(services)) as url, ThreadPoolExecutor(4) as pool:
        list(pool.map(define_many, [url] * 4, range(4)))

    with services.database.transaction() as session:
        names = dict(session.execute(text("SELECT id, name FROM datasets")).all())
    by: dict[str, set[str]] = {}
    for entry in _entries(services):
        if entry["kind"] == "dataset.defined":
            by.setdefault(entry["by"], set()).add(names[entry["dataset"]].split("-")[0])
    assert sorted(map(sorted, by.values())) == [["d0"], ["d1"], ["d2"], ["d3"]]


def test_who_acts_is_the_logs_own_word(services: Services) -> None:
    with services.database.transaction() as session, pytest.raises(TypeError):
        log.append(session, "test", by="somebody else")


def test_the_log_holds_together_with_callers_in_it(
    services: Services, admin: TestClient, workshop: Workshop
) -> None:
    _forget(admin, workshop)
    summary = fsck.check(services.database, keys=[], report=lambda _: None)
    assert summary.size == len(_entries(services))
    assert summary.faults == 0


def test_the_trail_is_newest_first_and_whole(
    services: Services, admin: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    seen: list[dict] = []
    params: dict[str, int | str] = {"limit": 3}
    while True:
        page = admin.get("/v1/audit", params=params).json()
        assert len(page["items"]) <= 3
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]

    entries = _entries(services)
    assert [entry["index"] for entry in seen] == list(range(len(entries)))[::-1]
    for shown, entry in zip(seen, entries[::-1], strict=True):
        assert shown["facts"] | {"kind": shown["kind"], "by": shown["by"]} == {
            name: value for name, value in entry.items() if name != "recorded_at"
        }


def test_the_trail_of_one_caller_or_kind(
    services: Services, admin: TestClient, workshop: Workshop
) -> None:
    _dataset(admin, workshop)
    caller = _id_of(admin)
    (entry,) = admin.get("/v1/audit", params={"caller": caller}).json()["items"]
    assert (entry["kind"], entry["by"], entry["name"]) == ("dataset.defined", caller, "caller")
    found = admin.get("/v1/audit", params={"kind": "key.created"}).json()["items"]
    assert [entry["kind"] for entry in found] == ["key.created"] * 2
    nothing = {"items": [], "next_cursor": None}
    assert admin.get("/v1/audit", params={"caller": "nobody"}).json() == nothing


def test_a_caller_is_found_by_an_index(services: Services, workshop: Workshop) -> None:
    with services.database.transaction() as session:
        session.execute(text("SET LOCAL enable_seqscan = off"))
        query = (
            "EXPLAIN SELECT index FROM log_entries"
            """ WHERE substring(body FROM '"by":"([^"]*)"') = 'key_x'"""
        )
        plan = "\n".join(session.scalars(text(query)))
    assert "ix_log_entries_by" in plan
