"""API keys: when they end, when they were last used."""

from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from app.access import api_keys
from app.cli.application import create_app
from app.domain.states import Scope
from app.services import Services


def _client(services: Services, secret: str) -> TestClient:
    return TestClient(create_app(services), headers={"Authorization": f"Bearer {secret}"})


def _make(api: TestClient, **body: object) -> dict:
    answer = api.post("/v1/api-keys", json={"name": "k", "scopes": ["models:read"], **body})
    assert answer.status_code == 201, answer.text
    return answer.json()


def _listed(api: TestClient, key_id: str) -> dict:
    return next(key for key in api.get("/v1/api-keys").json()["items"] if key["id"] == key_id)


def _set(services: Services, key_id: str, what: str) -> None:
    with services.database.transaction() as session:
        session.execute(text(f"UPDATE api_keys SET {what} WHERE id = :id"), {"id": key_id})


def test_a_key_ends_when_it_was_said_to(services: Services, api: TestClient) -> None:
    end = datetime.now(UTC) + timedelta(days=90)
    made = _make(api, expires_at=end.isoformat())
    client = _client(services, made["secret"])
    assert datetime.fromisoformat(_listed(api, made["id"])["expires_at"]) == end
    assert client.get("/v1/models").status_code == 200

    _set(services, made["id"], "expires_at = now() - interval '1 microsecond'")

    answer = _client(services, made["secret"]).get("/v1/models")  # one that has not just asked
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
    assert answer.json()["type"] == "urn:expunge:problem:credentials-expired"
    assert answer.headers["www-authenticate"] == 'Bearer realm="expunge", error="invalid_token"'


IMPOSSIBLE_ENDS = ["2001-01-01T00:00:00Z", "2100-01-01T00:00:00", "tomorrow", "", 7, "9999-99-99"]


def test_an_end_that_cannot_be(api: TestClient, subtests: pytest.Subtests) -> None:
    for end in IMPOSSIBLE_ENDS:
        with subtests.test(end=end):
            body = {"name": "k", "scopes": ["models:read"], "expires_at": end}
            answer = api.post("/v1/api-keys", json=body)
            assert (answer.status_code, answer.json()["type"]) == (
                422,
                "urn:expunge:problem:invalid-input",
            )


def test_without_an_end_a_key_does_not_end(api: TestClient) -> None:
    assert _listed(api, _make(api)["id"])["expires_at"] is None


def test_the_last_use_is_shown_and_written_once_a_minute(
    services: Services, api: TestClient
) -> None:
    made = _make(api)
    client = _client(services, made["secret"])
    assert _listed(api, made["id"])["last_used_at"] is None

    client.get("/v1/models")
    first = _listed(api, made["id"])["last_used_at"]
    assert datetime.now(UTC) - datetime.fromisoformat(first) < timedelta(minutes=1)
    client.get("/v1/models")
    assert _listed(api, made["id"])["last_used_at"] == first

    _set(services, made["id"], "last_used_at = now() - interval '61 seconds'")
    _client(services, made["secret"]).get("/v1/models")
    assert _listed(api, made["id"])["last_used_at"] > first


def test_a_refused_call_is_no_use(services: Services, api: TestClient) -> None:
    made = _make(api)
    api.delete(f"/v1/api-keys/{made['id']}")
    assert _client(services, made["secret"]).get("/v1/models").status_code == 401
    assert _listed(api, made["id"])["last_used_at"] is None


def test_noting_the_use_waits_for_nobody(services: Services, api: TestClient) -> None:
    made = _make(api)
    client = _client(services, made["secret"])
    with services.database.transaction() as session:
        # As long as this transaction lasts, nobody else can write this row.
        session.execute(text("SELECT FROM api_keys FOR UPDATE"))
        assert client.get("/v1/models").status_code == 200
    assert _listed(api, made["id"])["last_used_at"] is None
    _client(services, made["secret"]).get("/v1/models")
    assert _listed(api, made["id"])["last_used_at"] is not None


def test_noting_the_use_goes_beside_requests_that_refer_to_the_key(
    services: Services, api: TestClient
) -> None:
    made = _make(api)
    with services.database.transaction() as session:
        session.execute(text("SELECT FROM api_keys FOR KEY SHARE"))  # as a foreign key takes it
        _client(services, made["secret"]).get("/v1/models")
    assert _listed(api, made["id"])["last_used_at"] is not None


def test_the_log_says_when_a_key_ends(services: Services, api: TestClient) -> None:
    end = datetime.now(UTC) + timedelta(hours=1)
    made = _make(api, expires_at=end.isoformat())
    (created,) = api.get("/v1/audit", params={"kind": "key.created", "limit": 1}).json()["items"]
    assert len(created["facts"].pop("rows")) == 1
    assert created["facts"] == {
        "key": made["id"],
        "scopes": ["models:read"],
        "expires_at": end.isoformat(),
    }


def test_a_callers_identity_is_no_key(services: Services, api: TestClient) -> None:
    """The digest of a token's subject must not open what a key with that digest would."""
    secret = "anything"
    with services.database.transaction() as session:
        digest = api_keys.digest_of(secret)
        api_keys.token_caller(session, digest, [Scope.ADMIN])
    assert _client(services, secret).get("/v1/models").status_code == 401
