"""The resources over HTTP: statuses, problems, headers, pages."""

from contextlib import suppress

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from app.access import api_keys
from app.api.protocol.schemas import BY_INDEX, BY_MOMENT, BY_NAME, BY_NUMBER
from app.cli.application import create_app
from app.domain.errors import InvalidInputError, ObjectStoreError
from app.domain.states import Scope, Serving
from app.evidence.certificates.tables import CertificateRow
from app.ledger import runs
from app.registry.datasets.service import Records
from app.services import Services
from tests.support.arrays import array_schema
from tests.support.weights import WEIGHTS
from tests.support.workshop import DATASET, TASK, Workshop, records_parquet

PROBLEM = "application/problem+json"


def _problem(answer, status: int, name: str) -> dict:
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text
    problem = answer.json()
    assert problem["type"] == f"urn:expunge:problem:{name}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem


def _forget(api: TestClient, *records: str, headers: dict | None = None, **body: object):
    body = {"dataset": DATASET, "record_ids": list(records), **body}
    return api.post("/v1/forget-requests", json=body, headers=headers or {})


ABSENT = [
    "/v1/datasets/nothing",
    "/v1/models/nothing",
    "/v1/models/nothing/certified",
    "/v1/models/nothing/certified/weights",
    "/v1/models/nothing/versions",
    "/v1/models/nothing/versions/1/weights",
    "/v1/models/nothing/versions/1/certificate",
    "/v1/forget-requests/nothing",
    "/v1/forget-requests/nothing/certificates",
    "/v1/certificates/nothing",
    "/v1/runs/nothing",
    "/nowhere",
]


def test_what_is_not_there(api: TestClient, subtests: pytest.Subtests) -> None:
    for path in ABSENT:
        with subtests.test(path=path):
            _problem(api.get(path), 404, "not-found")


INVALID = [
    ("POST", "/v1/datasets", {"name": "a/b", "columns": {"x": "int8"}, "record_id": "id"}),
    ("POST", "/v1/datasets", {"name": "a", "columns": {}, "record_id": "id"}),
    ("POST", "/v1/datasets", {"name": "a", "columns": {"x": "int8"}}),
    ("POST", "/v1/datasets", {"name": "a", "columns": {"x": 8}, "record_id": "id"}),
    ("POST", "/v1/datasets", {"name": "a", "columns": {"x": "int8"}, "record_id": "id", "x": 1}),
    ("POST", "/v1/datasets", [1]),
    ("POST", "/v1/forget-requests", {"dataset": DATASET}),
    ("POST", "/v1/forget-requests", {"dataset": DATASET, "record_ids": [""]}),
    ("POST", "/v1/forget-requests", {"dataset": DATASET, "record_ids": [1]}),
    ("POST", "/v1/forget-requests", {"dataset": DATASET, "record_ids": ["record-1"],
                                     "external_id": "\x00"}),
    ("GET", "/v1/forget-requests?cursor=junk", None),
    ("GET", "/v1/forget-requests?state=asleep", None),
    ("GET", "/v1/forget-requests?limit=0", None),
    ("GET", "/v1/forget-requests?model=%00", None),
    ("GET", "/v1/forget-requests?external_id=%00", None),
    ("GET", "/v1/runs/%00", None),
    ("GET", "/v1/models/model/versions/one/weights", None),
    ("POST", "/v1/api-keys", {"name": "k", "scopes": ["everything"]}),
    ("POST", "/v1/api-keys", {"name": "k", "scopes": []}),
]  # fmt: skip


def test_invalid_input_names_its_field(
    api: TestClient, workshop: Workshop, subtests: pytest.Subtests
) -> None:
    for method, path, body in INVALID:
        with subtests.test(method=method, path=path):
            _problem(api.request(method, path, json=body), 422, "invalid-input")


def test_of_many_faults_the_first_are_listed(api: TestClient) -> None:
    body = {"dataset": DATASET, **{f"unknown{number}": 1 for number in range(1000)}}
    problem = _problem(api.post("/v1/forget-requests", json=body), 422, "invalid-input")
    assert (problem["problem_count"], len(problem["problems"])) == (1000, 20)
    assert problem["problems"][0]["field"] == "body.unknown0"


IMPOSSIBLE = [
    ({"policy": {"epsilon": 0.0}}, "parameter-out-of-range"),
    ({"policy": {"epsilon": 1e300, "mechanism": "gradient_clipping"}}, "no-plan"),
    ({"policy": {"parameters": {"initial_clip": 0}, "mechanism": "gradient_clipping"}},
     "parameter-out-of-range"),
    ({"policy": {"parameters": {"sigma": 1}}}, "no-plan"),
    ({"policy": {"adaptive": True}}, "no-plan"),
    ({"policy": {"deadline_s": 1e300}}, "parameter-out-of-range"),
    ({"recipe": {"epochs": 0}}, "invalid-input"),
    ({"recipe": {"warmup": 1}}, "invalid-input"),
    ({"recipe": {"groups": [{"parameters": "*", "momentum": 0.1}]}}, "invalid-input"),
    (
        {"recipe": {"clip_norm": 1.0}, "policy": {"epsilon": 1.0, "mechanism": "dp_sgd"}},
        "invalid-input",
    ),
    ({"architecture": {"name": "transformer"}}, "invalid-input"),
    ({"architecture": {"name": "custom", "factory": "os:system", "options": {"a": "\x00"}}},
     "invalid-input"),
    ({"weights": "upload", "policy": {"first_release": "as_trained"}}, "invalid-input"),
    ({"name": "../x"}, "invalid-input"),
]  # fmt: skip


def test_a_model_that_cannot_be_is_not_defined(
    api: TestClient, workshop: Workshop, subtests: pytest.Subtests
) -> None:
    for part, name in IMPOSSIBLE:
        with subtests.test(part=part, name=name):
            body = {
                "name": "m",
                "dataset": DATASET,
                "task": TASK,
                "architecture": {"name": "logistic"},
            } | part

            _problem(api.post("/v1/models", json=body), 422, name)

            assert api.get("/v1/models").json()["items"] == []


def test_a_name_can_be_taken_once(api: TestClient, workshop: Workshop) -> None:
    body = {"name": "m", "dataset": DATASET, "task": TASK, "architecture": {"name": "logistic"}}
    made = api.post("/v1/models", json=body)
    assert (made.status_code, made.headers["location"]) == (201, "/v1/models/m")
    assert made.json()["latest_run"]["kind"] == "train"

    _problem(api.post("/v1/models", json=body), 409, "conflict")


def test_a_model_needs_records(api: TestClient) -> None:
    api.post("/v1/datasets", json={"name": "d", **array_schema(2).to_json()})
    body = {"name": "m", "dataset": "d", "task": TASK, "architecture": {"name": "logistic"}}

    assert (
        "push some first" in _problem(api.post("/v1/models", json=body), 409, "conflict")["detail"]
    )


def test_replacing_needs_the_right_to_have_records_forgotten(
    api: TestClient, workshop: Workshop
) -> None:
    with workshop.transaction() as session:
        _, key = api_keys.create_key(session, name="x", scopes=[Scope.DATA_WRITE])
    mine = {"Authorization": f"Bearer {key}"}
    path, changed = f"/v1/datasets/{DATASET}/records", {"replace": True}
    content = records_parquet(1, first=100)
    assert api.put(path, content=content, headers=mine).json()["added"] == 1
    _problem(api.put(path, content=content, headers=mine, params=changed), 403, "missing-scope")
    answer = api.put(path, content=content, params=changed).json()
    assert (answer["already_present"], answer["forget_request"]) == (1, None)


def test_unknown_records_are_named_to_the_caller(api: TestClient, workshop: Workshop) -> None:
    unknown = [f"stranger-{i}" for i in range(21)]

    problem = _problem(_forget(api, "record-1", *unknown), 422, "unknown-records")

    assert problem["unknown_count"] == 21
    assert len(problem["unknown"]) == 20
    assert api.get("/v1/forget-requests").json()["items"] == []


def test_a_request_is_accepted_with_everything_its_sender_needs(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    record = workshop.split()[0][0]

    answer = _forget(api, record, external_id="ticket")

    assert (answer.status_code, answer.headers["retry-after"]) == (202, "2")
    request = answer.json()
    assert answer.headers["location"] == f"/v1/forget-requests/{request['id']}"
    assert (request["state"], request["external_id"], request["records"]) == (
        "accepted",
        "ticket",
        1,
    )
    assert len(request["receipt_salt"]) == 44
    assert request["due_at"] > request["received_at"]
    assert request["obligations"][0]["model"] == "model"
    assert record not in answer.text


def test_an_external_id_is_echoed_to_its_sender_alone_and_found_again(
    api: TestClient, workshop: Workshop
) -> None:
    sent = _forget(api, "record-1", external_id="alice@example.com").json()
    other = _forget(api, "record-2").json()

    assert (sent["external_id"], other["external_id"]) == ("alice@example.com", None)
    assert _forget(api, "record-1", external_id="alice@example.com").json() == sent
    shown = api.get(f"/v1/forget-requests/{sent['id']}").json()
    assert shown == sent | {"external_id": None}
    found = api.get("/v1/forget-requests", params={"external_id": "alice@example.com"}).json()
    assert found["items"] == [shown]
    found = api.get("/v1/forget-requests", params={"external_id": "bob@example.com"}).json()
    assert found["items"] == []


@pytest.mark.parametrize(
    "path", ["/v1/models/", "/v1/forget-requests/", "/requests/", "/login/", "/static", "/readyz/"]
)
def test_no_redirect_repeats_the_host_that_a_client_claims(api: TestClient, path: str) -> None:
    answer = api.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
    assert answer.status_code == 404
    assert "evil.example" not in f"{answer.headers}{answer.text}"


def test_what_no_model_has_to_unlearn_is_certified_in_the_answer(
    api: TestClient, services: Services, workshop: Workshop
) -> None:
    first, again = _forget(api, "record-1"), _forget(api, "record-1")
    for answer in (first, again):
        assert (answer.status_code, answer.json()["state"]) == (201, "certified")
        assert "retry-after" not in answer.headers
    services.clean_up()
    for answer in (first, again):
        assert api.get(answer.headers["location"]).json()["state"] == "completed"


def test_what_was_accepted_is_answered_so_even_if_it_cannot_be_erased_yet(
    api: TestClient, services: Services, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise ObjectStoreError("the object store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Records, "erase", away)
        accepted = _forget(api, "record-1")
        with pytest.raises(ObjectStoreError):
            services.clean_up()
    assert (accepted.status_code, accepted.json()["state"]) == (201, "certified")

    services.clean_up()
    assert api.get(accepted.headers["location"]).json()["state"] == "completed"


def test_cancel_and_retry_over_http(api: TestClient, workshop: Workshop) -> None:
    workshop.train()
    trained, _ = workshop.split()
    path = _forget(api, trained[0]).headers["location"]
    _problem(api.post(f"{path}/retry"), 409, "conflict")

    assert api.delete(path).json()["state"] == "cancelled"
    _problem(api.delete(path), 409, "conflict")

    path = _forget(api, trained[0]).headers["location"]
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held, "out of memory: use a smaller batch_size")
    assert api.get(path).json()["failure_reason"] == "out of memory: use a smaller batch_size"
    assert api.get(f"/v1/runs/{held.run_id}").json()["state"] == "failed"
    retried = api.post(f"{path}/retry")
    assert (retried.status_code, retried.json()["state"]) == (202, "accepted")


def test_a_run_is_cancelled_over_http_and_tried_again(api: TestClient, workshop: Workshop) -> None:
    workshop.train()
    request = _forget(api, workshop.split()[0][0]).headers["location"]
    workshop.dispatch()
    held = workshop.begun()
    path = f"/v1/runs/{held.run_id}"

    cancelled = api.post(f"{path}/cancel")

    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    assert cancelled.json()["finished_at"] is not None
    assert api.get(request).json()["state"] == "accepted"
    assert [run["id"] for run in api.get("/v1/runs?state=cancelled").json()["items"]] == [
        held.run_id
    ]
    _problem(api.post(f"{path}/cancel"), 409, "conflict")
    _problem(api.post("/v1/runs/run_unknown/cancel"), 404, "not-found")
    assert api.post(f"{path}/retry").json()["state"] == "queued"
    workshop.work()
    assert api.get(request).json()["state"] == "certified"


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_run_that_diverges_can_still_be_shown(
    api: TestClient, workshop: Workshop, number: str
) -> None:
    workshop.define()
    held = workshop.lease()
    with workshop.transaction() as session:
        runs.heartbeat(
            session, held.run_id, held.token, lease_s=30, progress={"loss": float(number)}
        )

    assert api.get(f"/v1/runs/{held.run_id}").json()["loss"] is None


def test_weights_come_with_their_digest_and_length(api: TestClient, workshop: Workshop) -> None:
    workshop.define()
    _problem(api.get("/v1/models/model/certified"), 404, "not-ready")
    version = workshop.work()
    shown = api.get("/v1/models/model/certified").json()

    answer = api.get("/v1/models/model/certified/weights")

    assert answer.history[0].status_code == 307
    assert answer.content == WEIGHTS
    assert answer.headers["etag"] == f'"{version.sha256}"' == f'"{shown["sha256"]}"'
    assert answer.headers["content-length"] == str(shown["size_bytes"])
    assert shown["size_bytes"] == len(WEIGHTS)
    for tags in (f'"{version.sha256}"', f'"x", W/"{version.sha256}"', "*"):
        current = api.get(shown["links"]["weights"], headers={"If-None-Match": tags})
        assert (current.status_code, current.content) == (304, b"")
        assert current.headers["etag"] == f'"{version.sha256}"'
    assert api.get(shown["links"]["weights"], headers={"If-None-Match": '"x"'}).status_code == 200


def test_a_replaced_version_is_gone_but_its_certificate_stays(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.train()
    old = api.get("/v1/models/model/certified").json()
    _forget(api, workshop.split()[0][0])
    workshop.unlearn()

    _problem(
        api.get(old["links"]["weights"], headers={"If-None-Match": f'"{old["sha256"]}"'}),
        410,
        "gone",
    )
    assert api.get(old["links"]["certificate"]).status_code == 200
    assert [v["state"] for v in api.get("/v1/models/model/versions").json()["items"]] == [
        "certified",
        "retired",
    ]


def test_a_withdrawn_model_answers_410_from_the_request_on(
    api: TestClient, workshop: Workshop
) -> None:
    workshop.train(serving=Serving.WITHDRAW_ON_REQUEST)
    paths = ["certified", "certified/weights", "versions/1/weights"]
    assert {api.get(f"/v1/models/model/{path}").status_code for path in paths} == {200}

    _forget(api, workshop.split()[0][0])

    for path in paths:
        _problem(api.get(f"/v1/models/model/{path}"), 410, "gone")
    assert api.get("/v1/models/model").json()["certified"] is None


def test_a_private_first_version_is_not_there(api: TestClient, workshop: Workshop) -> None:
    workshop.train(first_release="none")

    _problem(api.get("/v1/models/model/certified"), 404, "not-ready")
    _problem(api.get("/v1/models/model/versions/1/weights"), 404, "not-found")
    _problem(api.get("/v1/models/model/versions/1/certificate"), 404, "not-found")
    with workshop.transaction() as session:
        certificate = session.scalars(select(CertificateRow.id)).one()
    absent = api.get("/v1/certificates/cert_absent").json()
    hidden = api.get(f"/v1/certificates/{certificate}")
    _problem(hidden, 404, "not-found")
    assert hidden.json() == {
        **absent,
        "detail": absent["detail"].replace("cert_absent", certificate),
    }
    assert api.get("/v1/models/model/versions").json()["items"] == []


def test_uploaded_weights_must_be_safetensors(api: TestClient, workshop: Workshop) -> None:
    workshop.define(upload=True)
    for content in (b"", b"junk", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{}"):
        _problem(api.put("/v1/models/model/weights", content=content), 422, "invalid-input")
    for content in (b"PK\x03\x04zip", b"\x80\x02pickle"):
        answer = api.put("/v1/models/model/weights", content=content)
        assert "expunge model upload" in answer.json()["detail"]
    assert workshop.active_run() is None


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: raw.hex()))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_cursor_that_was_not_given_out_is_refused(cursor: str) -> None:
    for order in (BY_MOMENT, BY_NAME, BY_NUMBER, BY_INDEX):
        with suppress(InvalidInputError):
            position = order.decode(cursor)
            assert order.decode(order.encode(position)) == position


def test_a_database_that_is_away_is_a_503(
    services: Services, api: TestClient, workshop: Workshop
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("SELECT 'secret'", {}, Exception("secret"))

    workshop.forged = True  # what the log tells cannot be read either
    event.listen(services.database.engine, "before_cursor_execute", fail)
    answer = api.get("/v1/models")
    assert _problem(answer, 503, "unavailable")
    assert answer.headers["retry-after"] == "2"
    assert "secret" not in answer.text
    assert api.get("/readyz").status_code == 503
    assert api.get("/livez").status_code == 200


def test_an_unexpected_error_tells_nothing(services: Services, monkeypatch) -> None:
    app: FastAPI = create_app(services)

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("secret")

    answer = TestClient(app, raise_server_exceptions=False).get("/broken")

    _problem(answer, 500, "internal")
    assert "secret" not in answer.text


def test_openapi_documents_every_error_as_a_problem(services: Services) -> None:
    document = create_app(services).openapi()

    assert "HTTPValidationError" not in document["components"]["schemas"]
    for path, methods in document["paths"].items():
        if path.startswith("/opendsr/"):
            continue  # it has errors of its own
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                if status[0] in "45" and path != "/readyz":
                    assert answer == {"$ref": f"#/components/responses/Problem{status}"}
                    named = document["components"]["responses"][f"Problem{status}"]
                    assert set(named["content"]) == {PROBLEM}, (method, path, status)
                    assert named["content"][PROBLEM]["schema"]["properties"]["type"]["enum"]
