"""Who gets in, for how long, and what a cookie is worth."""

from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from itertools import product

import pytest
from fastapi.testclient import TestClient
from starlette import requests

from app.access import api_keys
from app.cli.application import create_app
from app.domain.states import Scope
from app.runtime.locations import redis_connection
from app.services import Services
from app.web.access import open_sessions
from tests.integration.app.web.conftest import VisitorOf, log_in, token_in
from tests.support.dumps import everything_in_postgres


@pytest.fixture
def stranger(services: Services) -> TestClient:
    return TestClient(create_app(services), follow_redirects=False)


@pytest.fixture
def key(services: Services) -> tuple[str, str]:
    """The id and the secret of a key that may do everything."""
    with services.database.transaction() as session:
        row, secret = api_keys.create_key(session, name="desk", scopes=[Scope.ADMIN])
        return row.id, secret


PAGES = (
    "/",
    "/requests",
    "/requests/x",
    "/runs",
    "/runs/x",
    "/runs/x/progress",
    "/models",
    "/models/x",
    "/models/x/versions/1",
    "/models/x/versions/1/certificate",
    "/models/x/versions/1/weights",
    "/runs/progress",
    "/data/x",
    "/settings",
    "/settings/audit",
)
POSTS = (
    "/requests",
    "/requests/found",
    "/requests/x/cancel",
    "/requests/x/receipt",
    "/requests/x/retry",
    "/runs/x/retry",
    "/logout",
)


def test_without_a_session_every_page_asks_for_a_key(stranger: TestClient) -> None:
    for path in PAGES:
        answer = stranger.get(path)
        assert (path, answer.status_code, answer.headers["location"]) == (path, 303, "/login")
    for path in POSTS:
        answer = stranger.post(path, data={"token": "x"})
        assert (path, answer.status_code, answer.headers["location"]) == (path, 303, "/login")


def test_a_bearer_key_opens_no_page(stranger: TestClient, key: tuple[str, str]) -> None:
    answer = stranger.get("/requests", headers={"Authorization": f"Bearer {key[1]}"})

    assert answer.headers["location"] == "/login"


def test_a_session_opens_nothing_of_the_interface(operator: TestClient) -> None:
    assert operator.get("/requests").status_code == 200
    assert operator.get("/v1/models").status_code == 401


def test_the_cookie_is_kept_from_scripts_and_other_sites(
    stranger: TestClient, key: tuple[str, str], services: Services
) -> None:
    token = token_in(stranger.get("/login").text)

    answer = stranger.post("/login", data={"token": token, "key": key[1]})

    cookie = next(
        value
        for value in answer.headers.get_list("set-cookie")
        if value.startswith("expunge-session=")
    )
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/" in cookie
    assert "Secure" not in cookie
    assert key[1] not in str(answer.headers)
    held = redis_connection(services.settings)
    stored = [name for name in held.scan_iter("*") if name.startswith(b"expunge:session:")]
    assert [held.get(name).partition(b" ")[0] for name in stored] == [key[0].encode()]
    secret = cookie.split("=", 1)[1].split(";")[0]
    assert secret.encode() not in b" ".join(held.scan_iter("*"))
    assert secret not in everything_in_postgres(services.database.engine)


@pytest.mark.parametrize("secure", ["scheme", "proxy"])
def test_over_https_the_cookie_stays_there(
    services: Services, key: tuple[str, str], secure: str
) -> None:
    scheme = "https" if secure == "scheme" else "http"
    headers = {"X-Forwarded-Proto": "https"} if secure == "proxy" else {}
    client = TestClient(
        create_app(services),
        base_url=f"{scheme}://expunge.example",
        headers=headers,
        follow_redirects=False,
    )

    page = client.get("/login")

    assert "Secure" in page.headers["set-cookie"]


WRONG_KEYS = ["", "xpg_wrong", "x" * 600, "\x00", "é"]


def test_a_wrong_key_is_refused_in_words(stranger: TestClient, subtests: pytest.Subtests) -> None:
    for wrong in WRONG_KEYS:
        with subtests.test(wrong=wrong):
            token = token_in(stranger.get("/login").text)

            answer = stranger.post("/login", data={"token": token, "key": wrong})

            assert answer.status_code == 401
            assert "is not valid" in answer.text
            assert "expunge-session" not in answer.headers["set-cookie"]


def test_a_revoked_key_ends_its_sessions(
    stranger: TestClient, key: tuple[str, str], services: Services
) -> None:
    log_in(stranger, key[1])
    assert stranger.get("/requests").status_code == 200

    with services.database.transaction() as session:
        api_keys.revoke(session, key[0])

    assert stranger.get("/requests").headers["location"] == "/login"
    assert list(redis_connection(services.settings).scan_iter("expunge:session:*")) == []


def test_logging_out_ends_the_session_for_every_copy_of_the_cookie(
    operator: TestClient, stranger: TestClient
) -> None:
    stranger.cookies = operator.cookies
    assert stranger.get("/requests").status_code == 200

    token = token_in(operator.get("/requests").text)
    assert operator.post("/logout", data={"token": token}).headers["location"] == "/login"

    assert "expunge-session" not in operator.cookies
    assert stranger.get("/requests").headers["location"] == "/login"


def test_sessions_expire(services: Services) -> None:
    held = replace(open_sessions(services), lifetime=timedelta(seconds=90))
    token = held.start("key_1")
    (name,) = held.redis.scan_iter("expunge:session:*")

    assert held.key_of(token) == "key_1"
    assert 0 < held.redis.ttl(name) <= 90
    held.redis.expire(name, 0)
    assert held.key_of(token) is None


def test_whoever_writes_to_redis_cannot_log_in(services: Services) -> None:
    held = open_sessions(services)
    mine, theirs = held.start("key_mine"), held.start("key_theirs")
    names = {token: f"expunge:session:{sha256(token.encode()).hexdigest()}" for token in
             (mine, theirs, "made-up")}  # fmt: skip
    assert [held.key_of(token) for token in (mine, theirs)] == ["key_mine", "key_theirs"]

    for token in ("made-up", mine):
        held.redis.set(names[token], held.redis.get(names[theirs]))
    assert [held.key_of(token) for token in ("made-up", mine)] == [None, None]
    seal = held.pseudonyms.session(mine, "key_mine").hex()
    for forged in ("key_theirs", "key_theirs ", f"key_theirs {seal}", "", b"\xff"):
        held.redis.set(names[mine], forged)
        assert held.key_of(mine) is None


def test_too_many_failures_have_to_wait_even_with_a_key_that_holds(
    services: Services, key: tuple[str, str]
) -> None:
    settings = services.settings.model_copy(update={"failed_attempts_per_minute": 3})
    app = create_app(replace(services, settings=settings))
    stranger = TestClient(app, follow_redirects=False)
    token = token_in(stranger.get("/login").text)
    for _ in range(3):
        assert stranger.post("/login", data={"token": token, "key": "x"}).status_code == 401

    answer = stranger.post("/login", data={"token": token, "key": key[1]})

    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 60


FOREIGN_FORMS = [
    ({}, {"token": ""}),
    ({}, {"token": "0" * 64}),
    ({}, {}),
    ({"Origin": "https://evil.example"}, None),
    ({"Origin": "null"}, None),
    ({"Sec-Fetch-Site": "cross-site"}, None),
    ({"Sec-Fetch-Site": "same-site"}, None),
]


def test_a_form_of_another_site_is_refused(operator: TestClient, subtests: pytest.Subtests) -> None:
    for path, (headers, data) in product(["/login", *POSTS], FOREIGN_FORMS):
        with subtests.test(path=path, headers=headers, data=data):
            right = token_in(operator.get("/login" if path == "/login" else "/requests").text)
            sent = {"token": right} if data is None else data

            answer = operator.post(path, data=sent | {"key": "x"}, headers=headers)

            assert answer.status_code == 403
            assert "Not sent" in answer.text
            assert operator.get("/requests").status_code == 200


def test_a_token_of_another_session_is_refused(visitor_of: VisitorOf) -> None:
    mine, theirs = visitor_of(Scope.ADMIN), visitor_of(Scope.ADMIN)
    token = token_in(theirs.get("/requests").text)

    assert mine.post("/logout", data={"token": token}).status_code == 403
    assert (
        mine.post("/logout", data={"token": token_in(mine.get("/requests").text)}).status_code
        == 303
    )


NO_FORMS = [
    (b"{}", "application/json", 422),
    (b"--x\r\n\r\n1\r\n--x--", "multipart/form-data; boundary=x", 422),
    (b"token=%FF%FE\xff", "application/x-www-form-urlencoded", 422),
    (b"&".join([b"a=1"] * 65), "application/x-www-form-urlencoded", 422),
]


def test_what_is_no_form_of_ours(stranger: TestClient, subtests: pytest.Subtests) -> None:
    for content, media_type, status in NO_FORMS:
        with subtests.test(content=content, media_type=media_type):
            answer = stranger.post("/login", content=content, headers={"Content-Type": media_type})

            assert answer.status_code == status
            assert answer.headers["content-type"].startswith("text/html")


def test_without_redis_the_page_says_so(services: Services) -> None:
    away = services.settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    object.__setattr__(services, "settings", away)
    client = TestClient(create_app(services), cookies={"expunge-session": "x"})

    answer = client.get("/requests")

    assert answer.status_code == 503
    assert "Redis cannot be reached" in answer.text


def test_only_the_pages_own_cookies_are_read(
    stranger: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 takes seconds for a quoted one of 60,000 characters."""
    read: list[str] = []
    real = requests.cookie_parser
    monkeypatch.setattr(requests, "cookie_parser", lambda text: [read.append(text), real(text)][1])
    slow = '"' + "\\" * 1000 + '"'
    sent = f"a={slow}; expunge-session=ab-C_1;expunge-login={slow}; xexpunge-login=a"
    for path in ("/login", "/livez", "/requests"):
        stranger.get(path, headers={"cookie": sent})
        stranger.get(path, headers={"cookie": f"expunge-session={slow}"})
    assert set(read) == {"", "expunge-session=ab-C_1"}
