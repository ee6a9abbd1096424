"""How often one may call, and fail."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import uvicorn
from fastapi.testclient import TestClient

from app.access import api_keys
from app.cli.application import create_app, server_options
from app.domain.states import Scope
from app.runtime.locations import redis_connection
from app.services import Services
from tests.support.dumps import everything_in_redis

Limited = Callable[..., TestClient]
FAILURES = 3


@pytest.fixture
def limited(services: Services, admin_key: str) -> Limited:
    """Return a client of one API process with these settings."""

    def client(
        *, key: str | None = admin_key, address: str = "192.0.2.1", **settings: object
    ) -> TestClient:
        changed = services.settings.model_copy(update=settings)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        app = create_app(replace(services, settings=changed))
        return TestClient(app, headers=headers, client=(address, 1))

    return client


def _from(client: TestClient, address: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    other = TestClient(client.app, client=(address, 1), headers=headers)
    return other.get("/v1/models").status_code


def _statuses(client: TestClient, count: int) -> list[int]:
    return [client.get("/v1/models").status_code for _ in range(count)]


@pytest.fixture(params=["redis", "no redis"])
def counting(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings under which limits are counted in Redis, or in the process alone."""
    return {} if request.param == "redis" else {"redis_url": "unix:///nowhere/redis.sock"}


def test_a_caller_is_told_what_is_left_and_then_to_wait(limited: Limited, counting: dict) -> None:
    client = limited(requests_per_minute=3, **counting)
    for left in (2, 1, 0):
        answer = client.get("/v1/models")
        assert answer.status_code == 200
        assert answer.headers["ratelimit-policy"] == '"minute";q=3;w=60'
        assert re.fullmatch(rf'"minute";r={left};t=\d+', answer.headers["ratelimit"])

    answer = client.get("/v1/models")

    assert answer.status_code == 429
    assert answer.json()["type"] == "urn:expunge:problem:too-many-requests"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.headers["ratelimit"].startswith('"minute";r=0;t=')


def test_bursts_are_limited_apart(limited: Limited) -> None:
    client = limited(requests_per_minute=1000, requests_burst=1000)
    answer = client.get("/v1/models")
    assert answer.headers["ratelimit-policy"] == '"burst";q=1000;w=1, "minute";q=1000;w=60'
    only_bursts = limited(requests_burst=1)
    assert 429 in _statuses(only_bursts, 50)


def test_every_answer_tells_what_is_left(limited: Limited) -> None:
    client = limited(requests_per_minute=100)
    for method, path, status in (
        ("GET", "/v1/models/nothing", 404),
        ("POST", "/v1/models", 422),
        ("GET", "/v1/models", 200),
    ):
        answer = client.request(method, path)
        assert (answer.status_code, "ratelimit" in answer.headers) == (status, True)
    assert "ratelimit" not in client.get("/livez").headers


def test_processes_count_together(limited: Limited) -> None:
    one, other = (limited(requests_per_minute=4) for _ in range(2))
    assert _statuses(one, 2) + _statuses(other, 3) == [200] * 4 + [429]


def test_callers_are_counted_apart(limited: Limited, caller_of: Callable[..., TestClient]) -> None:
    client = limited(requests_per_minute=1)
    assert _statuses(client, 2) == [200, 429]
    other = caller_of(Scope.MODELS_READ).headers["Authorization"].removeprefix("Bearer ")
    assert _from(client, "192.0.2.1", other) == 200


def test_without_limits_nothing_is_counted(limited: Limited, services: Services) -> None:
    client = limited(redis_url="unix:///nowhere/redis.sock")
    answer = client.get("/v1/models")
    assert (answer.status_code, "ratelimit" in answer.headers) == (200, False)


def test_wrong_keys_are_limited_by_address(limited: Limited, counting: dict) -> None:
    client = limited(key="xpg_wrong", failed_attempts_per_minute=FAILURES, **counting)
    assert _statuses(client, FAILURES) == [401] * FAILURES

    answer = client.get("/v1/models")

    assert (answer.status_code, answer.json()["status"]) == (429, 429)
    assert answer.json()["type"] == "urn:expunge:problem:too-many-requests"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert _from(client, "192.0.2.2", "xpg_wrong") == 401


def test_the_limit_holds_by_default(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPUNGE_FAILED_ATTEMPTS_PER_MINUTE")
    changed = replace(services, settings=type(services.settings)())
    client = TestClient(create_app(changed), headers={"Authorization": "Bearer xpg_wrong"})
    assert _statuses(client, 21) == [401] * 20 + [429]


def test_an_address_that_fails_is_not_even_looked_up(limited: Limited, admin_key: str) -> None:
    """Guessing ends: a right guess is not told from a wrong one."""
    client = limited(key="xpg_wrong", failed_attempts_per_minute=FAILURES)
    _statuses(client, FAILURES)
    assert _from(client, "192.0.2.1", admin_key) == 429
    assert _from(client, "192.0.2.2", admin_key) == 200


def test_known_callers_go_on_behind_an_address_that_fails(limited: Limited, admin_key: str) -> None:
    client = limited(key="xpg_wrong", failed_attempts_per_minute=FAILURES)
    assert _from(client, "192.0.2.1", admin_key) == 200
    assert _statuses(client, FAILURES + 1)[-1] == 429
    assert _from(client, "192.0.2.1", admin_key) == 200


def test_a_revoked_key_is_known_no_longer(limited: Limited, api: TestClient) -> None:
    made = api.post("/v1/api-keys", json={"name": "k", "scopes": ["models:read"]}).json()
    client = limited(key=made["secret"], failed_attempts_per_minute=FAILURES)
    assert _statuses(client, 1) == [200]
    api.delete(f"/v1/api-keys/{made['id']}")
    assert _statuses(client, FAILURES + 1) == [401] * FAILURES + [429]


def test_no_key_is_no_attempt(limited: Limited) -> None:
    client = limited(key=None, failed_attempts_per_minute=FAILURES)
    assert _statuses(client, FAILURES + 2) == [401] * (FAILURES + 2)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("somewhere", "elsewhere", False),
    ],
)
def test_one_network_of_ipv6_counts_as_one(
    limited: Limited, one: str, other: str, *, same: bool
) -> None:
    client = limited(key="xpg_wrong", address=one, failed_attempts_per_minute=FAILURES)
    _statuses(client, FAILURES)
    assert _from(client, other, "xpg_wrong") == (429 if same else 401)


def test_redis_learns_no_key_and_no_address(limited: Limited, services: Services) -> None:
    client = limited(key="xpg_wrong", failed_attempts_per_minute=FAILURES, requests_per_minute=10)
    _statuses(client, 1)
    limited(requests_per_minute=10).get("/v1/models")
    stored = everything_in_redis(redis_connection(services.settings)).decode(errors="replace")
    assert "expunge:limits" in stored
    with services.database.transaction() as session:
        ids = [row.id for row in api_keys.keys(session, limit=10)]
    for secret in ("192.0.2.1", "xpg_wrong", *ids):
        assert secret not in stored


def test_counters_expire(limited: Limited, services: Services) -> None:
    limited(requests_per_minute=10, requests_burst=10).get("/v1/models")
    connection = redis_connection(services.settings)
    counters = list(connection.scan_iter("expunge:limits:*"))
    assert counters
    assert all(
        0 < connection.ttl(counter) <= 60 or not connection.exists(counter) for counter in counters
    )


@pytest.mark.parametrize(
    ("trusted", "peer", "believed"),
    [
        ([], "127.0.0.1", False),
        (["10.0.0.0/8"], "127.0.0.1", False),
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["127.0.0.1"], "127.0.0.1", True),
    ],
)
def test_only_trusted_proxies_are_believed_about_addresses(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    trusted: list[str],
    peer: str,
    *,
    believed: bool,
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # what uvicorn itself would heed
    monkeypatch.setenv("EXPUNGE_TRUSTED_PROXIES", json.dumps(trusted))
    monkeypatch.setenv("EXPUNGE_FAILED_ATTEMPTS_PER_MINUTE", str(FAILURES))
    settings = type(services.settings)()
    server = uvicorn.Config(
        create_app(replace(services, settings=settings)), **server_options(settings)
    )
    server.load()
    headers = {"Authorization": "Bearer xpg_wrong"}
    statuses = [
        TestClient(server.loaded_app, client=(peer, 1), headers=headers)
        .get("/v1/models", headers={"X-Forwarded-For": f"192.0.2.{number}"})
        .status_code
        for number in range(FAILURES + 1)
    ]
    assert statuses[-1] == (401 if believed else 429)
