"""Bodies: how large they may be, and of what kind; who may call from a browser."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.services import Services, open_services
from app.settings import Settings
from tests.support.workshop import DATASET, Workshop, records_parquet

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def small(services: Services, admin_key: str, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """A service that takes 1,000 bytes of JSON and 2,000 of a file."""
    monkeypatch.setenv("EXPUNGE_MAX_JSON_BYTES", "1000")
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
def test_json_has_a_limit(small: TestClient, key: dict, chunked: bool) -> None:
    for size, expected in ((1000, 422), (1001, 413)):
        content = b'"' + b"x" * (size - 2) + b'"'
        body = _chunks(content) if chunked else content
        answer = small.post("/v1/forget-requests", content=body, headers={**JSON, **key})
        assert answer.status_code == expected
    assert _type(answer) == (413, "payload-too-large")
    assert "1000 bytes" in answer.json()["detail"]


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


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", "json", ""]
)
def test_json_is_announced_as_json(api: TestClient, kind: str) -> None:
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


@pytest.mark.parametrize("body", [b"\xff", b'{"a":', b"[" * 100_000, b"1" * 5000, b""])
def test_json_that_cannot_be_read(api: TestClient, body: bytes) -> None:
    status, _ = _type(api.post("/v1/plans", content=body, headers=JSON))
    assert status in (400, 422)


def test_half_a_surrogate_pair_is_told_without_failing(api: TestClient) -> None:
    answer = api.post("/v1/plans", content=rb'{"\ud800": 1}', headers=JSON)
    assert _type(answer) == (422, "invalid-input")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/models", "GET, POST"),
        ("PUT", "/v1/datasets", "GET, POST"),
        ("POST", "/v1/models/m/weights", "PUT"),
        ("PATCH", "/v1/forget-requests/fr_1", "GET, DELETE"),
        ("GET", "/v1/plans", "POST"),
        ("POST", "/v1/models/m/versions/1/weights", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_taken(api: TestClient, method: str, path: str, allowed: str) -> None:
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
