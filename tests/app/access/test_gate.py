"""Whoever calls all the time never waits for the ledger to tell who calls."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from app.access import known
from app.access.gate import Gate
from app.access.known import LIFETIME_S
from app.access.rate_limits import Counters, limits_of
from app.domain.scopes import Scope
from app.ledger import api_keys
from app.services import Services, redis_url


@pytest.fixture
def gate(services: Services) -> Gate:
    counters = Counters(redis_url(services.settings), services.pseudonyms)
    calls, failures = limits_of(services.settings, counters)
    return Gate(services.database, services.pseudonyms, tokens=None, calls=calls, failures=failures)


def test_a_key_in_steady_use_is_looked_up_before_its_second_is_over(
    gate: Gate, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    with services.database.transaction() as session:
        row, secret = api_keys.create_key(session, name="steady", scopes=[Scope.LOG_READ])
    now = [time.monotonic()]
    looked_up: list[float] = []
    holder_of = api_keys.holder_of
    monkeypatch.setattr(known, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(
        api_keys, "holder_of", lambda *of: looked_up.append(now[0]) or holder_of(*of)
    )

    async def call() -> str:
        return (await gate.caller_of(secret, "192.0.2.1")).key_id

    async def call_after(passed_s: float) -> None:
        now[0] += passed_s
        assert await call() == row.id

    async def calls() -> None:
        await call_after(0)
        for _ in range(5):
            await call_after(0.3 * LIFETIME_S)
            await call_after(0.3 * LIFETIME_S)
            seen = gate._known._entries[api_keys.digest_of(secret)]
            while seen.until < now[0] + 0.9 * LIFETIME_S:
                await asyncio.sleep(0.01)
                seen = gate._known._entries[api_keys.digest_of(secret)]

    asyncio.run(asyncio.wait_for(calls(), 60))
    assert len(looked_up) == 6  # at first, and after each 0.6 of a lifetime
