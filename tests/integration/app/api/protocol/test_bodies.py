"""Bodies: how large they may be, and of what kind; who may call from a browser."""

import gzip
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from app.api.protocol.bodies import LARGE_BYTES
from app.cli.application import create_app
from app.runtime.settings import Settings
from app.services import Services, open_services
from tests.support.patience import PATIENCE_S, until
from tests.support.serving import serve
from tests.support.workshop import DATASET, Workshop, records_parquet

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def small(services: Services, admin_key: str, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """A service that takes 1,000 bytes of JSON, 1,500 of one with ids and 2,000 of a file."""
    monkeypatch.setenv("EXPUNGE_MAX_JSON_BYTES", "1000")
    monkeypatch.setenv("EXPUNGE_MAX_IDS_BYTES", "1500")
    monkeypatch.setenv("EXPUNGE_MAX_UPLOAD_BYTES", "2000")
    limited = open_services(Settings())
    yield TestClient(create_app(limited), headers={"Authorization": f"Bearer {admin_key}"})
    limited.database.dispose()


def _type(answer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].removeprefix("urn:expunge:problem:")


def _chunks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), 100):
        yield content[start : start + 100]


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("path", "limit"),
    [("/v1/plans", 1000), ("/v1/forget-requests", 1500), ("/opendsr/v2/requests", 1500)],
)
def test_json_has_a_limit_and_more_where_it_lists_ids(
    small: TestClient, key: dict, chunked: bool, path: str, limit: int
) -> None:
    for size, expected in ((limit, {400, 422}), (limit + 1, {413})):
        content = b'"' + b"x" * (size - 2) + b'"'
        body = _chunks(content) if chunked else content
        answer = small.post(path, content=body, headers={**JSON, **key})
        assert answer.status_code in expected
    assert _type(answer) == (413, "payload-too-large")
    assert f"{limit} bytes" in answer.json()["detail"]


@pytest.mark.parametrize("size", [0, LARGE_BYTES])
def test_a_field_that_is_named_twice_is_no_field(api: TestClient, size: int) -> None:
    """Of two lists of records one would be forgotten, and 202 said of both."""
    Workshop(api.app.state.services)
    record = '"record_ids": ["record-1"]'
    body = f'{{"dataset": "{DATASET}", {record}, {record}}}'.ljust(size)
    for path in ("/v1/forget-requests", "/v1/forget-requests/preview"):
        answer = api.post(path, content=body, headers=JSON)
        assert _type(answer) == (400, "bad-request")
        assert "twice" in answer.json()["detail"]


def test_the_limits_are_64_kilobytes_and_16_megabytes_for_ids(api: TestClient) -> None:
    assert (Settings().max_json_bytes, Settings().max_ids_bytes) == (64 * 1024, 16 * 1024**2)
    answer = api.post("/v1/plans", content=b" " * (64 * 1024 + 1), headers=JSON)
    assert _type(answer) == (413, "payload-too-large")


@pytest.mark.parametrize("count", [21, 100, 50_000])
def test_twenty_faults_are_listed_of_however_many(api: TestClient, count: int) -> None:
    """50,000 do not fit into 256 kB: they are read beside the event loop."""
    answer = api.post("/v1/forget-requests", json={f"field-{i}": 0 for i in range(count)})

    assert _type(answer) == (422, "invalid-input")
    problem = answer.json()
    assert problem["problem_count"] == count
    assert len(problem["problems"]) == 20


def test_the_first_id_that_is_none_is_told_and_no_other_looked_at(api: TestClient) -> None:
    answer = api.post("/v1/forget-requests", json={"dataset": "d", "record_ids": [1] * 100_000})
    assert answer.json()["problems"] == [
        {"field": "body.record_ids.0", "reason": "Input should be a valid string"}
    ]


def test_more_values_than_any_forget_request_has_are_refused_as_such(api: TestClient) -> None:
    for value in (b"0", b"[]", b"{}", b'"x"', rb'"\\"', rb'"\","', b'{"a":0}', b'"\xc3\xa9"'):
        content = b'{"a":[' + (value + b",") * 250_000 + b"0]}"
        answer = api.post("/v1/forget-requests", content=content, headers=JSON)
        assert _type(answer) == (422, "invalid-input")
        assert answer.json()["detail"] == "body: more than 250000 values"


def test_a_large_body_that_is_no_json_is_told_as_a_small_one(api: TestClient) -> None:
    for size in (10, 300_000):
        answer = api.post("/v1/forget-requests", content=b'"' * size, headers=JSON)
        assert _type(answer) == (422, "invalid-input")
        answer = api.post("/v1/forget-requests", content=b"\xff" * size, headers=JSON)
        assert _type(answer) == (400, "bad-request")


def test_a_value_is_no_less_one_for_what_it_holds(api: TestClient, workshop: Workshop) -> None:
    """What separates values elsewhere counts for nothing within a text."""
    ids = ["record-0", *([r',[{"\,' * 4] * 60_000)]
    answer = api.post("/v1/forget-requests", json={"dataset": DATASET, "record_ids": ids})
    assert _type(answer) == (422, "unknown-records")


def test_a_large_forget_request_is_taken(api: TestClient, workshop: Workshop) -> None:
    ids = [f"record-{i}" for i in range(2)] + ["record-0"] * 40_000
    body = {"dataset": DATASET, "record_ids": ids}
    assert len(str(ids)) > LARGE_BYTES
    answer = api.post("/v1/forget-requests", json=body)
    assert (answer.status_code, answer.json()["records"]) == (201, 2)


@pytest.mark.parametrize("chunked", [False, True])
def test_files_have_another_limit(small: TestClient, workshop: Workshop, chunked: bool) -> None:
    content = records_parquet(100, first=100)
    path = f"/v1/datasets/{DATASET}/records"
    assert len(content) > 2000

    answer = small.put(path, content=_chunks(content) if chunked else content)

    assert _type(answer) == (413, "payload-too-large")
    weights = "/v1/models/nothing/weights"
    assert small.put(weights, content=b"x" * 2000).status_code == 422
    assert small.put(weights, content=b"x" * 2001).status_code == 413


@contextmanager
def _sending(url: str, head: str, body: bytes) -> Iterator[socket.socket]:
    """Send a request with a body shorter than announced."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.create_connection(address, PATIENCE_S) as caller:
        caller.sendall(f"{head}\r\nHost: x\r\n\r\n".encode() + body)
        yield caller


def test_all_bodies_together_are_limited(
    services: Services, admin_key: str, workshop: Workshop
) -> None:
    few = {"max_upload_bytes": 100_000, "max_json_bytes": 1000}
    app = create_app(replace(services, settings=services.settings.model_copy(update=few)))
    head = f"PUT /v1/datasets/{DATASET}/records HTTP/1.1\r\nContent-Length: 100000\r\n"
    head += f"Authorization: Bearer {admin_key}"
    with serve(app) as url, ExitStack() as held:
        callers = [held.enter_context(_sending(url, head, b"x" * 99_000)) for _ in range(3)]
        (answered, *_), _, _ = select.select(callers, [], [], PATIENCE_S)
        assert answered.recv(65536).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize(
    "head",
    [
        "POST /v1/plans HTTP/1.1\r\nContent-Type: application/json",
        "POST /v1/plans HTTP/1.1\r\nContent-Type: application/json\r\nIdempotency-Key: k",
        f"PUT /v1/datasets/{DATASET}/records HTTP/1.1",
    ],
    ids=["once", "repeatable", "file"],
)
def test_a_body_that_ends_early_is_no_body(
    services: Services, admin_key: str, caplog: pytest.LogCaptureFixture, head: str
) -> None:
    app = create_app(services)
    with serve(app) as url:
        sent = f"{head}\r\nContent-Length: 99\r\nAuthorization: Bearer {admin_key}"
        with _sending(url, sent, b"{"):
            pass
        own = {"Authorization": f"Bearer {admin_key}"}
        until(lambda: 'status="400"' in TestClient(app).get("/metrics", headers=own).text)
    assert "Traceback" not in caplog.text


OTHER_TYPES = ["text/plain", "application/x-www-form-urlencoded", "application/xml", "json", ""]


def test_json_is_announced_as_json(api: TestClient, subtests: pytest.Subtests) -> None:
    for kind in OTHER_TYPES:
        with subtests.test(kind=kind):
            answer = api.post("/v1/plans", content=b"{}", headers={"Content-Type": kind})
            assert _type(answer) == (415, "unsupported-media-type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_spellings_of_json(api: TestClient, kind: str) -> None:
    answer = api.post("/v1/plans", content=b"{}", headers={"Content-Type": kind})
    assert _type(answer) == (422, "invalid-input")


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x"])
def test_a_file_is_sent_as_it_is(api: TestClient, workshop: Workshop, kind: str) -> None:
    path = f"/v1/datasets/{DATASET}/records"
    content = records_parquet(3, first=100)
    answer = api.put(path, content=content, headers={"Content-Type": kind})
    assert _type(answer) == (415, "unsupported-media-type")

    for taken in ("application/octet-stream", "application/x-www-form-urlencoded"):
        assert api.put(path, content=content, headers={"Content-Type": taken}).status_code == 200


UNREADABLE = [b"\xff", b'{"a":', b"[" * 60_000, b"1" * 5000, b""]


def test_json_that_cannot_be_read(api: TestClient, subtests: pytest.Subtests) -> None:
    for body in UNREADABLE:
        with subtests.test(body=body):
            status, _ = _type(api.post("/v1/plans", content=body, headers=JSON))
            assert status in (400, 422)


def test_half_a_surrogate_pair_is_told_without_failing(api: TestClient) -> None:
    answer = api.post("/v1/plans", content=rb'{"\ud800": 1}', headers=JSON)
    assert _type(answer) == (422, "invalid-input")


NOT_TAKEN = [
    ("DELETE", "/v1/models", "GET, POST"),
    ("PUT", "/v1/datasets", "GET, POST"),
    ("POST", "/v1/models/m/weights", "PUT"),
    ("PATCH", "/v1/forget-requests/fr_1", "GET, DELETE"),
    ("GET", "/v1/plans", "POST"),
    ("POST", "/v1/models/m/versions/1/weights", "GET, HEAD"),
]


def test_a_method_that_is_not_taken(api: TestClient, subtests: pytest.Subtests) -> None:
    for method, path, allowed in NOT_TAKEN:
        with subtests.test(method=method, path=path):
            answer = api.request(method, path, json={})

            assert _type(answer) == (405, "method-not-allowed")
            assert answer.headers["allow"] == allowed


def test_browsers_may_not_call_by_default(api: TestClient) -> None:
    answer = api.get("/v1/models", headers={"Origin": "https://page.example"})
    assert "access-control-allow-origin" not in answer.headers
    preflight = api.options(
        "/v1/models",
        headers={"Origin": "https://page.example", "Access-Control-Request-Method": "GET"},
    )
    assert preflight.status_code == 405


def test_browsers_may_call_from_listed_origins(
    services: Services, admin_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_CORS_ORIGINS", '["https://page.example"]')
    opened = open_services(Settings())
    client = TestClient(create_app(opened), headers={"Authorization": f"Bearer {admin_key}"})

    answer = client.get("/v1/models", headers={"Origin": "https://page.example"})
    other = client.get("/v1/models", headers={"Origin": "https://other.example"})
    preflight = client.options(
        "/v1/forget-requests",
        headers={
            "Origin": "https://page.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, idempotency-key",
        },
    )
    opened.database.dispose()

    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert "ETag" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-origin" not in other.headers
    assert preflight.status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "identity, GZip", "x-gzip"])
def test_compressed_bodies_are_refused_by_every_operation(api: TestClient, coding: str) -> None:
    """Else a compressed file is stored, or refused as one that is damaged."""
    headers = {"Content-Encoding": coding, **JSON}
    body = gzip.compress(b'{"name": "data"}')
    operations = [
        (method, path)
        for path, methods in api.get("/openapi.json").json()["paths"].items()
        for method, what in methods.items()
        if "requestBody" in what
    ]
    assert len(operations) > 10
    for method, path in [*operations, ("post", "/login")]:
        answer = api.request(method, path, content=body, headers=headers)
        assert _type(answer) == (415, "unsupported-media-type"), (method, path)
        assert answer.headers["accept-encoding"] == "identity"


def test_a_body_that_is_not_compressed_may_say_so(api: TestClient) -> None:
    for coding, status in (("identity", 422), ("Identity", 422), ("", 422)):
        answer = api.post("/v1/plans", content=b"{}", headers=JSON | {"Content-Encoding": coding})
        assert answer.status_code == status
        assert "accept-encoding" not in answer.headers
    assert api.get("/v1/models", headers={"Content-Encoding": "gzip"}).status_code == 200
