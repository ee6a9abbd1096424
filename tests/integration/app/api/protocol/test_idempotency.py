"""``Idempotency-Key``: the same call of the same caller again has the same answer, one effect."""

import threading
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, func, select, update
from sqlalchemy.exc import OperationalError

from app.access.api_keys import Scope
from app.access.tables import ApiKeyRow, IdempotencyKeyRow
from app.api import forget_requests
from app.api.protocol import idempotency as protocol
from app.cli.application import create_app
from app.domain.errors import ObjectStoreError
from app.domain.schema import TableSchema
from app.ledger.accepting import Acceptance
from app.ledger.tables import ForgetRequestRow
from app.registry.datasets.reading import Readers
from app.registry.datasets.uploads import Upload
from app.services import Services
from tests.integration.app.api.conftest import CallerOf
from tests.support.dumps import everything_in_postgres
from tests.support.patience import PATIENCE_S
from tests.support.workshop import DATASET, TASK, Workshop, records_parquet

KEY = {"Idempotency-Key": "jane.doe@example.org asked on Monday"}
FORGET = {"dataset": DATASET, "record_ids": ["record-1"]}
NEW_KEY = {"name": "k", "scopes": ["models:read"]}


def _count(services: Services, table: type) -> int:
    with services.database.transaction() as session:
        return session.scalars(select(func.count()).select_from(table)).one()


def _shift(services: Services, **columns: timedelta) -> None:
    """Let time pass for all stored calls."""
    with services.database.transaction() as session:
        for name, shift in columns.items():
            column = getattr(IdempotencyKeyRow, name)
            session.execute(update(IdempotencyKeyRow).values({name: column - shift}))


def _type(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("urn:expunge:problem:")


POSTS = {
    "/v1/datasets": {"name": "d", "columns": {"x": "float32"}, "record_id": "id"},
    "/v1/backbones": {
        "name": "b",
        "architecture": {"name": "logistic"},
        "input": {"shape": [1]},
        "classes": 2,
        "source": "a paper",
    },
    "/v1/models": {
        "name": "m",
        "dataset": DATASET,
        "task": TASK,
        "architecture": {"name": "logistic"},
    },
    "/v1/forget-requests": FORGET,
    "/v1/api-keys": NEW_KEY,
    "/v1/plans": {"model": "model"},
}


@pytest.mark.parametrize("path", POSTS)
def test_a_repeated_call_has_the_same_answer(
    api: TestClient, workshop: Workshop, path: str
) -> None:
    workshop.define()
    first = api.post(path, json=POSTS[path], headers=KEY)
    assert first.is_success
    assert "idempotent-replayed" not in first.headers

    again = api.post(path, json=POSTS[path], headers=KEY)

    assert again.headers["idempotent-replayed"] == "true"
    del again.headers["idempotent-replayed"]
    assert (again.status_code, again.content) == (first.status_code, first.content)
    ids = {answer.headers.pop("x-request-id") for answer in (first, again)}
    assert len(ids) == 2  # each call is a request of its own
    assert dict(again.headers) == dict(first.headers)


def test_a_retry_is_replayed_too(api: TestClient, workshop: Workshop) -> None:
    workshop.define()
    held = workshop.begun()
    workshop.give_up(held)
    path = f"/v1/runs/{held.run_id}/retry"

    first = api.post(path, headers=KEY)

    assert (first.status_code, api.post(path, headers=KEY).json()) == (202, first.json())
    assert _type(api.post(path)) == (409, "conflict")


def test_a_repeated_call_has_one_effect(
    api: TestClient, services: Services, workshop: Workshop
) -> None:
    keys = _count(services, ApiKeyRow)
    for _ in range(3):
        api.post("/v1/forget-requests", json=FORGET, headers=KEY)
        api.post("/v1/api-keys", json=NEW_KEY, headers=KEY)

    assert _count(services, ForgetRequestRow) == 1
    assert _count(services, ApiKeyRow) == keys + 1


def test_another_body_or_query_under_the_same_key_is_refused(
    api: TestClient, services: Services, workshop: Workshop
) -> None:
    api.post("/v1/forget-requests", json=FORGET, headers=KEY)

    other = {**FORGET, "record_ids": ["record-2"]}
    for path, body in (("/v1/forget-requests", other), ("/v1/forget-requests?x=1", FORGET)):
        assert _type(api.post(path, json=body, headers=KEY)) == (422, "idempotency-key-reused")
    assert _count(services, ForgetRequestRow) == 1


def test_keys_belong_to_one_caller_and_one_path(
    services: Services, caller_of: CallerOf, workshop: Workshop
) -> None:
    one, two = (caller_of(Scope.ADMIN) for _ in range(2))
    answers = [
        client.post(path, json=body, headers=KEY)
        for client in (one, two)
        for path, body in (("/v1/forget-requests", FORGET), ("/v1/api-keys", NEW_KEY))
    ]

    assert all(answer.is_success for answer in answers)
    assert not any("idempotent-replayed" in answer.headers for answer in answers)
    assert len({answer.json()["id"] for answer in answers}) == 4


def test_who_may_not_call_gets_nothing_replayed(
    services: Services, caller_of: CallerOf, workshop: Workshop
) -> None:
    admin = caller_of(Scope.ADMIN)
    admin.post("/v1/forget-requests", json=FORGET, headers=KEY)

    assert caller_of().post("/v1/forget-requests", json=FORGET, headers=KEY).status_code == 401
    reader = caller_of(Scope.FORGET_READ)
    assert reader.post("/v1/forget-requests", json=FORGET, headers=KEY).status_code == 403
    me = next(k for k in admin.get("/v1/api-keys").json()["items"] if k["scopes"] == ["admin"])
    admin.delete(f"/v1/api-keys/{me['id']}")
    assert admin.post("/v1/forget-requests", json=FORGET, headers=KEY).status_code == 401


def test_nothing_stored_tells_the_key_or_the_answer(
    api: TestClient, services: Services, workshop: Workshop
) -> None:
    secret = api.post("/v1/api-keys", json=NEW_KEY, headers=KEY).json()["secret"]
    request = api.post(
        "/v1/forget-requests", json={**FORGET, "external_id": "T-1"}, headers=KEY
    ).json()

    with services.database.transaction() as session:
        stored = [row.answer for row in session.scalars(select(IdempotencyKeyRow))]
    assert len(stored) == 2
    for text in (secret, request["receipt_salt"], "T-1", "application/json"):
        assert not any(text.encode() in answer for answer in stored)
    dump = everything_in_postgres(services.database.engine)
    assert secret not in dump
    assert "jane.doe" not in dump
    assert b"jane.doe".hex() not in dump
    replayed = api.post("/v1/api-keys", json=NEW_KEY, headers=KEY)
    assert replayed.json()["secret"] == secret


def test_an_error_frees_its_key(api: TestClient, services: Services, workshop: Workshop) -> None:
    unknown = {**FORGET, "record_ids": ["nobody"]}
    for body in (unknown, {"dataset": DATASET}, {"junk": 1}):
        assert api.post("/v1/forget-requests", json=body, headers=KEY).status_code == 422
    assert _count(services, IdempotencyKeyRow) == 0

    assert api.post("/v1/forget-requests", json=FORGET, headers=KEY).status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_has_a_sensible_length(api: TestClient, key: str) -> None:
    answer = api.post("/v1/plans", json=POSTS["/v1/plans"], headers={"Idempotency-Key": key})
    assert _type(answer) == (422, "invalid-input")


def test_a_call_in_flight_is_a_conflict(
    api: TestClient, services: Services, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()
    submit = Acceptance.submit_all

    def slow(*args: object, **options: object) -> object:
        started.set()
        assert go_on.wait(PATIENCE_S)
        return submit(*args, **options)

    monkeypatch.setattr(Acceptance, "submit_all", slow)
    answers: list[httpx.Response] = []
    call = threading.Thread(
        target=lambda: answers.append(api.post("/v1/forget-requests", json=FORGET, headers=KEY))
    )
    call.start()
    assert started.wait(PATIENCE_S)
    meanwhile = api.post("/v1/forget-requests", json=FORGET, headers=KEY)
    go_on.set()
    call.join()

    assert _type(meanwhile) == (409, "call-in-flight")
    assert int(meanwhile.headers["retry-after"]) > 0
    again = api.post("/v1/forget-requests", json=FORGET, headers=KEY)
    assert again.json() == answers[0].json()
    assert _count(services, ForgetRequestRow) == 1


def test_a_failed_answer_to_a_call_that_took_effect_is_made_up_for(
    api: TestClient, services: Services, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise ObjectStoreError("the object store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(forget_requests, "answer_of", away)
        failed = api.post("/v1/forget-requests", json=FORGET, headers=KEY)
    assert _type(failed) == (503, "storage-unavailable")
    assert _count(services, ForgetRequestRow) == 1

    again = api.post("/v1/forget-requests", json=FORGET, headers=KEY)

    assert again.status_code == 201
    assert _count(services, ForgetRequestRow) == 1


def test_an_overtaken_attempt_does_not_replace_the_answer(
    services: Services, workshop: Workshop
) -> None:
    from app.access import idempotency
    from app.access.idempotency import Answer, Call, Claim

    call = Call("key_1", "POST", "/v1/plans", b"", b"{}", "k")
    with services.database.transaction() as session:
        slow = services.idempotency_keys.claim(session, call)
    _shift(services, claimed_until=timedelta(seconds=61))
    with services.database.transaction() as session:
        fast = services.idempotency_keys.claim(session, call)
    assert isinstance(slow, Claim)
    assert isinstance(fast, Claim)
    assert slow.call_id == fast.call_id

    for claim, body in ((slow, b"slow"), (fast, b"fast"), (slow, b"slow")):
        with services.database.transaction() as session:
            idempotency.abandon(session, slow)
            idempotency.finish(session, claim, Answer(200, (), body))

    with services.database.transaction() as session:
        assert services.idempotency_keys.claim(session, call) == Answer(200, (), b"fast")


def test_a_key_is_free_again_after_a_day(
    api: TestClient, services: Services, workshop: Workshop
) -> None:
    first = api.post("/v1/forget-requests", json=FORGET, headers=KEY).json()
    _shift(services, expires_at=timedelta(hours=23, minutes=59))
    services.forget_answers()
    assert api.post("/v1/forget-requests", json=FORGET, headers=KEY).json() == first

    _shift(services, expires_at=timedelta(minutes=2))
    other = {**FORGET, "record_ids": ["record-2"]}
    assert api.post("/v1/forget-requests", json=other, headers=KEY).json()["id"] != first["id"]

    _shift(services, expires_at=timedelta(hours=25))
    services.forget_answers()
    assert _count(services, IdempotencyKeyRow) == 0


def test_without_the_database_nothing_is_executed(
    services: Services, admin_key: str, workshop: Workshop
) -> None:
    client = TestClient(create_app(services), headers={"Authorization": f"Bearer {admin_key}"})

    def fail(*_: object) -> None:
        raise OperationalError("SELECT 'secret'", {}, Exception("secret"))

    event.listen(services.database.engine, "before_cursor_execute", fail)
    answer = client.post("/v1/forget-requests", json=FORGET, headers=KEY)
    event.remove(services.database.engine, "before_cursor_execute", fail)

    assert _type(answer) == (503, "unavailable")
    assert answer.headers["retry-after"]
    assert _count(services, ForgetRequestRow) == 0


@pytest.mark.parametrize("replace", [False, True])
def test_a_push_whose_answer_was_lost_never_restores_what_was_forgotten_since(
    api: TestClient,
    services: Services,
    workshop: Workshop,
    monkeypatch: pytest.MonkeyPatch,
    *,
    replace: bool,
) -> None:
    workshop.define()
    path = f"/v1/datasets/{DATASET}/records"
    call: dict[str, Any] = {"content": records_parquet(1, first=100), "headers": KEY}
    call["params"] = {"replace": replace}
    with monkeypatch.context() as killed:  # after the records were stored
        killed.setattr(protocol, "_settle", lambda *_: None)
        first = api.put(path, **call)
    assert first.json()["added"] == 1
    forgotten = api.post("/v1/forget-requests", json={**FORGET, "record_ids": ["record-100"]})
    assert forgotten.is_success
    before = api.get(f"/v1/datasets/{DATASET}").json()["records"]
    _shift(services, claimed_until=timedelta(seconds=60))

    again = api.put(path, **call)

    assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
    assert api.get(f"/v1/datasets/{DATASET}").json()["records"] == before


def test_of_two_attempts_at_a_push_the_first_to_store_it_has_the_effect(
    api: TestClient, services: Services, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.define()
    path = f"/v1/datasets/{DATASET}/records"
    call: dict[str, Any] = {"content": records_parquet(1, first=100), "headers": KEY}
    answers: list[httpx.Response] = []
    read = Readers.read

    def slow(readers: Readers, content: bytes, schema: TableSchema) -> Upload:
        if not answers:  # meanwhile, the caller has tried again, and its record was forgotten
            answers.append(httpx.Response(0))
            _shift(services, claimed_until=timedelta(seconds=60))
            answers[0] = api.put(path, **call)
            api.post("/v1/forget-requests", json={**FORGET, "record_ids": ["record-100"]})
        return read(readers, content, schema)

    monkeypatch.setattr(Readers, "read", slow)
    late = api.put(path, **call)

    assert answers[0].json()["added"] == 1
    assert _type(late) == (409, "call-in-flight")
    assert api.put(path, **call).content == answers[0].content
