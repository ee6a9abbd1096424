"""Callers without a key: with access tokens of an issuer that the service trusts."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx import Response

from app.cli.application import create_app
from app.runtime.locations import redis_connection
from app.services import Services
from tests.support.dumps import everything_in_postgres, everything_in_redis
from tests.support.issuer import AUDIENCE, DISCOVERY, Issuer, running_issuer
from tests.support.workshop import DATASET, Workshop

With = Callable[..., TestClient]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def trusting(services: Services, issuer: Issuer) -> FastAPI:
    """An application that accepts the issuer's tokens, and few wrong ones."""
    changed = services.settings.model_copy(
        update={
            "oidc_issuer": issuer.url,
            "oidc_audience": AUDIENCE,
            "failed_attempts_per_minute": 5,
        }
    )
    return create_app(replace(services, settings=changed))


@pytest.fixture
def bearing(trusting: FastAPI, issuer: Issuer) -> With:
    """Return a client with a token that says this."""

    def client(**claims: object) -> TestClient:
        token = issuer.token(**claims)
        return TestClient(trusting, headers={"Authorization": f"Bearer {token}"})

    return client


def test_a_token_opens_what_its_scopes_say(bearing: With) -> None:
    client = bearing(scope="openid models:read")
    assert client.get("/v1/models").status_code == 200
    refused = client.get("/v1/forget-requests")
    assert (refused.status_code, refused.json()["scope"]) == (403, "forget:read")


def test_an_admin_by_token(bearing: With) -> None:
    assert bearing(scope="admin").get("/v1/api-keys").status_code == 200


def test_keys_go_on_working_beside_tokens(trusting: FastAPI, admin_key: str) -> None:
    client = TestClient(trusting, headers={"Authorization": f"Bearer {admin_key}"})
    assert client.get("/v1/models").status_code == 200


def test_without_an_issuer_a_token_is_nobodys(services: Services, issuer: Issuer) -> None:
    client = TestClient(create_app(services))
    answer = client.get("/v1/models", headers={"Authorization": f"Bearer {issuer.token()}"})
    assert answer.status_code == 401
    assert not issuer.fetches


def test_a_wrong_token_is_a_401_and_an_expired_one_says_so(bearing: With) -> None:
    wrong = bearing(aud="somebody else").get("/v1/models")
    assert (wrong.status_code, wrong.json()["type"]) == (401, "urn:expunge:problem:unauthenticated")
    assert 'error="invalid_token"' in wrong.headers["www-authenticate"]
    late = bearing(exp=1_000_000_000).get("/v1/models")
    assert (late.status_code, late.json()["type"]) == (
        401,
        "urn:expunge:problem:credentials-expired",
    )


def test_a_subject_that_is_no_text_names_nobody(bearing: With) -> None:
    answer = bearing(sub="\ud800").get("/v1/models")
    assert (answer.status_code, answer.json()["detail"]) == (401, "the access token has no subject")


def test_an_issuer_that_is_away_is_a_503_and_nobodys_failure(
    issuer: Issuer, bearing: With, trusting: FastAPI, admin_key: str
) -> None:
    issuer.raw[DISCOVERY] = (500, {}, b"")
    for _ in range(10):
        answer = bearing().get("/v1/models")
        assert answer.status_code == 503
        assert answer.json()["type"] == "urn:expunge:problem:issuer-unavailable"
        assert int(answer.headers["retry-after"]) > 0
    headers = {"Authorization": f"Bearer {admin_key}"}
    assert TestClient(trusting).get("/v1/models", headers=headers).status_code == 200


def test_forged_tokens_are_limited_like_wrong_keys(bearing: With) -> None:
    statuses = [bearing(aud="somebody else").get("/v1/models").status_code for _ in range(8)]
    assert statuses == [401] * 5 + [429] * 3


def test_the_same_person_is_the_same_caller_and_another_is_not(
    bearing: With, services: Services, api: TestClient
) -> None:
    for subject in ("anna", "anna", "bert"):
        assert bearing(sub=subject).get("/v1/models").status_code == 200
    callers = [key for key in api.get("/v1/api-keys").json()["items"] if key["kind"] == "oidc"]
    assert len(callers) == 2
    assert all(caller["last_used_at"] and caller["scopes"] == [] for caller in callers)
    assert {d["facts"]["key"] for d in _audit(api, kind="caller.added")} == {
        caller["id"] for caller in callers
    }


def test_two_that_only_together_spell_alike_are_not_the_same(services: Services) -> None:
    pseudonyms = services.pseudonyms
    assert pseudonyms.caller("https://a", "bc") != pseudonyms.caller("https://ab", "c")
    assert pseudonyms.caller("https://a", "b") != pseudonyms.subject("https://a", "b")


def test_nothing_of_a_token_is_kept(
    bearing: With, issuer: Issuer, services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    client = bearing(sub="anna-4711-secret")
    client.get("/v1/models")
    client.get("/v1/api-keys")
    bearing(sub="anna-4711-secret", aud="x").get("/v1/models")
    token = client.headers["Authorization"].removeprefix("Bearer ")
    stored = everything_in_postgres(services.database.engine)
    queued = everything_in_redis(redis_connection(services.settings)).decode(errors="replace")
    for secret in ("anna-4711", token, token.split(".")[1], issuer.url):
        assert secret not in stored
        assert secret not in queued
    for secret in ("anna-4711", token, token.split(".")[1]):
        assert secret not in caplog.text


def test_a_caller_whose_tokens_are_refused_here(bearing: With, api: TestClient) -> None:
    client = bearing()
    client.get("/v1/models")
    (caller,) = [key for key in api.get("/v1/api-keys").json()["items"] if key["kind"] == "oidc"]
    assert api.delete(f"/v1/api-keys/{caller['id']}").status_code == 204
    assert client.get("/v1/models").status_code == 401
    assert bearing().get("/v1/models").status_code == 401


def test_forget_requests_by_token(bearing: With, workshop: Workshop, api: TestClient) -> None:
    client = bearing(scope="forget:write forget:read")
    body = {"dataset": DATASET, "record_ids": ["record-1"], "external_id": "ticket"}
    first = client.post("/v1/forget-requests", json=body)
    assert first.status_code == 201
    assert client.post("/v1/forget-requests", json=body).json()["id"] == first.json()["id"]

    other = bearing(scope="forget:write forget:read", sub="somebody-else")
    assert other.post("/v1/forget-requests", json=body).json()["id"] != first.json()["id"]

    (caller, _) = [
        key["id"] for key in api.get("/v1/api-keys").json()["items"] if key["kind"] == "oidc"
    ][::-1]
    accepted = [
        entry["facts"]["request"]
        for entry in _audit(api, caller=caller)
        if entry["kind"] == "request.accepted"
    ]
    assert accepted == [first.json()["id"]]


def test_an_answer_is_replayed_to_a_token_that_may_have_it_alone(bearing: With) -> None:
    def create(scope: str) -> Response:
        body = {"name": "k", "scopes": ["models:read"]}
        key = {"Idempotency-Key": "k"}
        return bearing(scope=scope).post("/v1/api-keys", json=body, headers=key)

    first = create("admin")
    refused = create("models:read")
    assert (refused.status_code, refused.json()["scope"]) == (403, "admin")
    assert create("admin").json() == first.json()


def test_a_new_key_of_the_issuer_is_accepted_without_a_restart(
    trusting: FastAPI, issuer: Issuer, bearing: With
) -> None:
    issuer.add_key("second", "EdDSA")
    assert bearing(kid="second").get("/v1/models").status_code == 200


def _audit(api: TestClient, **filters: str) -> list[dict]:
    return api.get("/v1/audit", params=filters).json()["items"]
