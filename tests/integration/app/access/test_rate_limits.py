"""Counting in Redis, and without it."""

import os

import pytest

from app.access.pseudonyms import Pseudonyms
from app.access.rate_limits import CallLimits, Counters, FailureLimit
from app.domain.errors import TooManyRequestsError
from app.runtime.embedded import EmbeddedServers

NOWHERE = "unix:///nowhere/redis.sock"


def _counters(url: str) -> Counters:
    return Counters(url, Pseudonyms(os.urandom(32)))


def test_addresses_of_an_attacker_take_little_memory() -> None:
    counters = _counters(NOWHERE)
    names = {counters.bucket_of("failures", f"2001:db8:{n:x}::/64") for n in range(200_000)}
    assert len(names) <= 65_536


def test_nobody_can_choose_whose_counter_to_share() -> None:
    one, other = _counters(NOWHERE), _counters(NOWHERE)
    addresses = [f"192.0.2.{n}" for n in range(256)]
    assert [one.bucket_of("failures", a) for a in addresses] != [
        other.bucket_of("failures", a) for a in addresses
    ]


def test_when_redis_goes_away_and_comes_back(servers: EmbeddedServers) -> None:
    counters = _counters(servers.redis_url)
    calls = CallLimits(counters, per_minute=2, burst=0)
    assert [calls.take("key")[0] for _ in range(3)] == [True, True, False]

    shared, counters._shared = counters._shared, _counters(NOWHERE)._shared
    assert [calls.take("key")[0] for _ in range(3)] == [True, True, False]
    counters._shared = shared
    assert calls.take("other")[0]  # for a while it does not ask
    counters._away_until = 0.0
    assert not calls.take("key")[0]


def test_the_failure_is_told_once_and_not_at_every_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = FailureLimit(_counters(NOWHERE), per_minute=2)
    for _ in range(2):
        failures.check("192.0.2.1")
        failures.note("192.0.2.1")
    with pytest.raises(TooManyRequestsError) as caught:
        failures.check("192.0.2.1")
    assert 1 <= caught.value.retry_after_s <= 60
    assert caplog.text.count("Redis does not answer") == 1
    assert "192.0.2.1" not in caplog.text


def test_no_limit_is_no_limit() -> None:
    failures = FailureLimit(_counters(NOWHERE), per_minute=0)
    for _ in range(100):
        failures.note("192.0.2.1")
        failures.check("192.0.2.1")
