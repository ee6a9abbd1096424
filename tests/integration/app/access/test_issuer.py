"""An issuer's keys: found, kept, fetched sparingly, and doubted when it should be."""

import asyncio
import json
import time

import pytest

from app.access.tokens import FETCH_INTERVAL_S, REFRESH_S, IssuerKeys
from app.domain.errors import InvalidCredentialsError, IssuerUnavailableError
from tests.support.issuer import DISCOVERY, Issuer


class Clock:
    """How far time has jumped."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, real = Clock(), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + clock.now)
    return clock


@pytest.fixture
def keys(issuer: Issuer, clock: Clock) -> IssuerKeys:
    return IssuerKeys(issuer.url)


def _key(keys: IssuerKeys, kid: str = "first"):
    return asyncio.run(keys.key(kid))


def test_keys_are_found_by_discovery_and_fetched_once(issuer: Issuer, keys: IssuerKeys) -> None:
    for _ in range(3):
        assert _key(keys).algorithm_name == "RS256"
    assert issuer.fetches == {DISCOVERY: 1, "/keys": 1}


def test_many_who_wait_for_the_first_fetch_share_it(issuer: Issuer, keys: IssuerKeys) -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*(keys.key("first") for _ in range(20)))

    asyncio.run(all_at_once())
    assert issuer.fetches["/keys"] == 1


def test_a_new_key_is_found_when_a_token_names_it(
    issuer: Issuer, keys: IssuerKeys, clock: Clock
) -> None:
    _key(keys)
    issuer.add_key("second", "ES256")
    clock.now += FETCH_INTERVAL_S
    assert _key(keys, "second").algorithm_name == "ES256"


def test_tokens_with_invented_keys_do_not_make_it_fetch_each_time(
    issuer: Issuer, keys: IssuerKeys, clock: Clock
) -> None:
    _key(keys)
    for fetches in (2, 3):  # the first one was for the known key
        for number in range(50):
            with pytest.raises(InvalidCredentialsError):
                _key(keys, f"invented-{number}")
        assert issuer.fetches["/keys"] == fetches
        clock.now += FETCH_INTERVAL_S


def test_a_withdrawn_key_goes_with_the_next_fetch(
    issuer: Issuer, keys: IssuerKeys, clock: Clock
) -> None:
    _key(keys)
    issuer.add_key("second", "ES256")
    del issuer.documents["/keys"]["keys"][0]
    assert _key(keys)
    clock.now += REFRESH_S + 1
    with pytest.raises(InvalidCredentialsError):
        _key(keys)
    assert _key(keys, "second")


def test_an_outage_is_no_verdict(issuer: Issuer, keys: IssuerKeys, clock: Clock) -> None:
    issuer.raw[DISCOVERY] = (503, {}, b"")
    for _ in range(3):
        with pytest.raises(IssuerUnavailableError):
            _key(keys)
    assert issuer.fetches[DISCOVERY] == 1
    del issuer.raw[DISCOVERY]
    clock.now += FETCH_INTERVAL_S
    assert _key(keys)


def test_during_an_outage_known_keys_are_valid_until_they_are_old(
    issuer: Issuer, keys: IssuerKeys, clock: Clock
) -> None:
    _key(keys)
    issuer.raw[DISCOVERY] = (503, {}, b"")
    for _ in range(3):
        with pytest.raises(IssuerUnavailableError):
            _key(keys, "unknown")
        assert _key(keys)
    assert issuer.fetches[DISCOVERY] == 2
    clock.now += REFRESH_S + 1
    with pytest.raises(IssuerUnavailableError):
        _key(keys)


def test_an_issuer_without_a_key_is_not_asked_each_time(issuer: Issuer, keys: IssuerKeys) -> None:
    issuer.documents["/keys"]["keys"].clear()
    for _ in range(3):
        with pytest.raises(IssuerUnavailableError):
            _key(keys)
    assert issuer.fetches["/keys"] == 1


def test_nobody_there() -> None:
    with pytest.raises(IssuerUnavailableError):
        _key(IssuerKeys("http://127.0.0.1:9"))


@pytest.mark.parametrize(
    "answer",
    [
        (200, {}, b"{"),
        (200, {}, b"[]"),
        (200, {}, b"[" * 100_000),
        (200, {}, b'{"issuer": "https://else.where", "jwks_uri": "https://else.where/keys"}'),
        (302, {"Location": "/keys"}, b""),
        (200, {}, b" " * (2 * 1024**2)),
    ],
)
def test_a_discovery_document_that_is_none(issuer: Issuer, keys: IssuerKeys, answer: tuple) -> None:
    issuer.raw[DISCOVERY] = answer
    with pytest.raises(IssuerUnavailableError):
        _key(keys)
    assert issuer.fetches["/keys"] == 0


@pytest.mark.parametrize(
    "where",
    [None, 7, "", "http://example.com/keys", "file:///etc/passwd", "http://[/", "https://a..b/"],
)
def test_keys_are_fetched_from_nowhere_that_could_be_forged(
    issuer: Issuer, keys: IssuerKeys, where: object
) -> None:
    issuer.documents[DISCOVERY] = {"issuer": issuer.url, "jwks_uri": where}
    with pytest.raises(IssuerUnavailableError):
        _key(keys)


@pytest.mark.parametrize(
    "changed",
    [
        {"use": "enc"},
        {"d": "AQAB"},
        {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"},
        {"alg": "RS1"},
        {"n": "AQAB"},
        {"n": 7},
        {"e": None},
        {"kid": 7},
    ],
)
def test_a_key_that_cannot_be_used_is_left_out_and_the_others_are_not(
    issuer: Issuer, keys: IssuerKeys, changed: dict
) -> None:
    listed = issuer.documents["/keys"]["keys"]
    listed.append({**listed[0], "kid": "other", **changed})
    listed.append("no key")
    assert _key(keys)
    with pytest.raises(InvalidCredentialsError):
        _key(keys, "other")


def test_what_is_logged_quotes_nothing(
    issuer: Issuer, keys: IssuerKeys, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.raw[DISCOVERY] = (200, {}, json.dumps("a-secret").encode())
    with pytest.raises(IssuerUnavailableError):
        _key(keys)
    assert "cannot be fetched" in caplog.text
    assert "a-secret" not in caplog.text
