"""Who is let in, when nobody can be looked up, and how long what was looked up holds."""

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError

from app.access import api_keys, authentication
from app.access.api_keys import Caller
from app.access.authentication import LIFETIME_S, Authentication, KnownCallers
from app.access.rate_limits import Counters, limits_of
from app.domain.errors import InvalidCredentialsError
from app.domain.states import Scope
from app.runtime.database import Database
from app.runtime.locations import redis_url
from app.services import Services
from tests.support.patience import PATIENCE_S


@pytest.fixture
def gate(services: Services) -> Authentication:
    return _gate(services, services.database)


def _gate(services: Services, database: Database) -> Authentication:
    counters = Counters(redis_url(services.settings), services.pseudonyms)
    calls, failures = limits_of(services.settings, counters)
    return Authentication(
        database, services.pseudonyms, tokens=None, calls=calls, failures=failures
    )


def test_a_key_in_steady_use_is_looked_up_once_a_second(
    gate: Authentication, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    with services.database.transaction() as session:
        row, secret = api_keys.create_key(session, name="steady", scopes=[Scope.LOG_READ])
    now = [time.monotonic()]
    looked_up: list[float] = []
    holder_of = api_keys.holder_of
    monkeypatch.setattr(authentication, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(
        api_keys, "holder_of", lambda *of, **by: looked_up.append(now[0]) or holder_of(*of, **by)
    )

    async def calls() -> None:
        for _ in range(10):
            assert (await gate.caller_of(secret, "192.0.2.1")).key_id == row.id
            now[0] += 0.6 * LIFETIME_S

    asyncio.run(asyncio.wait_for(calls(), PATIENCE_S))
    assert len(looked_up) == 5  # at first, and after each 1.2 of a lifetime


def test_those_who_come_together_are_told_apart(gate: Authentication, services: Services) -> None:
    with services.database.transaction() as session:
        made = [api_keys.create_key(session, name="k", scopes=[Scope.ADMIN]) for _ in range(20)]
    keys = {secret: row.id for row, secret in made}

    async def all_at_once(secrets: list[str]) -> list[object]:
        calls = (gate.caller_of(secret, "192.0.2.7") for secret in secrets)
        return await asyncio.gather(*calls, return_exceptions=True)

    wrong = [f"xpg_{number}" for number in range(5)]
    found = asyncio.run(all_at_once([*keys, *wrong, *keys]))

    assert [caller.key_id for caller in (*found[:20], *found[25:])] == [*keys.values()] * 2
    assert all(isinstance(error, InvalidCredentialsError) for error in found[20:25])


def test_without_a_database_nobody_waits_for_the_attempts_of_others(services: Services) -> None:
    """A server hangs up on everybody as soon as all have called, and before that on nobody."""
    callers = 20
    called: list[socket.socket] = []

    def hang_up_on_all(server: socket.socket) -> None:
        try:
            while len(called) < callers:  # times out if one attempt waits for another's end
                called.append(server.accept()[0])
        finally:
            for connection in called:
                connection.close()
            server.close()

    server = socket.create_server(("127.0.0.1", 0), backlog=callers)
    server.settimeout(30)
    port = server.getsockname()[1]
    options = "sslmode=disable&gssencmode=disable&connect_timeout=60"
    database = Database(f"postgresql+psycopg://nobody@127.0.0.1:{port}/nothing?{options}")
    gate = _gate(services, database)

    async def all_at_once() -> list[object]:
        calls = (gate.caller_of(f"xpg_{number}", "192.0.2.7") for number in range(callers))
        return await asyncio.gather(*calls, return_exceptions=True)

    with ThreadPoolExecutor(1) as thread:
        hanging_up = thread.submit(hang_up_on_all, server)
        errors = asyncio.run(all_at_once())
        hanging_up.result()
    database.dispose()

    assert len(called) == callers
    assert all(isinstance(error, OperationalError) for error in errors)


ANNE = Caller("key_anne", frozenset({Scope.ADMIN}))
DIGEST = b"digest"


def _holder(lasts_s: float | None = None) -> Callable[[], Caller]:
    return lambda: replace(ANNE, lasts_s=lasts_s)


def _revoke_a_key(services: Services) -> None:
    with services.database.transaction() as session:
        row, _ = api_keys.create_key(session, name="other", scopes=[Scope.ADMIN])
        api_keys.revoke(session, row.id)


def test_whoever_was_looked_up_is_known() -> None:
    known = KnownCallers(lifetime_s=60)
    assert known.find(DIGEST) is None
    assert known.look_up(DIGEST, _holder()) == ANNE
    assert known.find(DIGEST) == ANNE
    assert known.find(b"other") is None


def test_nobody_is_known_for_longer_than_the_lifetime_or_the_key() -> None:
    for known, lasts_s in ((KnownCallers(lifetime_s=0), None), (KnownCallers(lifetime_s=60), 0.0)):
        known.look_up(DIGEST, _holder(lasts_s))
        assert known.find(DIGEST) is None


def test_credentials_that_have_ended_are_remembered_as_accepted_but_grant_nothing() -> None:
    known = KnownCallers(lifetime_s=0)
    assert DIGEST not in known
    known.look_up(DIGEST, _holder())
    assert DIGEST in known
    assert known.find(DIGEST) is None
    known.discard(DIGEST)
    known.discard(b"never")
    assert DIGEST not in known


def test_a_revocation_ends_what_was_known(services: Services) -> None:
    known = KnownCallers(lifetime_s=60)
    known.look_up(DIGEST, _holder())
    _revoke_a_key(services)
    assert known.find(DIGEST) is None


def test_a_look_up_that_a_revocation_overtakes_is_not_kept(services: Services) -> None:
    known = KnownCallers(lifetime_s=60)

    def ask() -> Caller:
        _revoke_a_key(services)
        return ANNE

    assert known.look_up(DIGEST, ask) == ANNE
    assert known.find(DIGEST) is None


def test_a_revocation_that_is_rolled_back_changes_nothing(services: Services) -> None:
    before = api_keys.revocations()
    with services.database.transaction() as session:
        row, _ = api_keys.create_key(session, name="other", scopes=[Scope.ADMIN])
        api_keys.revoke(session, row.id)
        session.rollback()
    with services.database.transaction() as session:
        api_keys.create_key(session, name="another", scopes=[Scope.ADMIN])
    assert api_keys.revocations() == before


def test_the_least_recent_gives_way() -> None:
    known = KnownCallers(lifetime_s=60, most=2)
    for digest in (b"1", b"2", b"1", b"3"):
        known.look_up(digest, _holder())
    assert [known.find(digest) is not None for digest in (b"1", b"2", b"3")] == [True, False, True]
    assert [digest in known for digest in (b"1", b"2", b"3")] == [True, False, True]
