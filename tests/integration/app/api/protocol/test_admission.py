"""Turns: a caller's calls do not keep others waiting, and what nobody waits for is not done."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.access import api_keys
from app.api.protocol.admission import AT_ONCE, Admission, idle
from benchmarks.api_load import serving
from tests.support.flood import flooded, prepared
from tests.support.patience import PATIENCE_S

_PATIENT_S = 10.0  # for what took twenty seconds before
_KNOWN = {api_keys.digest_of(secret) for secret in ("mine", "yours")}


class _Calls:
    """Calls of an application whose handlers end when they are told to."""

    def __init__(self, *, most: int = 10_000, wait: bool = False) -> None:
        self.app = Admission(self._handle, most_calls=most, known=_KNOWN)
        self.begun: list[str] = []
        self.end = asyncio.Event()
        self._wait = wait

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.append(scope["path"])
        if self._wait and scope["path"] == "/wait":
            async with idle(scope):
                await self.end.wait()
        elif scope["path"] != "/now":
            await self.end.wait()
        assert (await receive())["body"] == b"body"
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def call(
        self, path: str, key: str | None = "mine", address: str = "10.0.0.1", gone: bool = False
    ) -> int:
        statuses: list[int] = []
        scope = {"type": "http", "path": path, "method": "GET", "client": (address, 1)}
        sent = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]

        async def receive() -> dict[str, Any]:
            if gone:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": b"body"}

        async def send(message: dict[str, Any]) -> None:
            if "status" in message:
                statuses.append(message["status"])

        await self.app(scope | {"headers": sent}, receive, send)
        return statuses[0]


def _run(check: Callable[[_Calls], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        calls = _Calls(**options)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup():
            await check(calls)
        assert not calls.app._callers
        assert calls.app._calls == 0

    asyncio.run(run())


async def _begin(calls: _Calls, count: int, **how: Any) -> list[asyncio.Task[int]]:
    tasks = [asyncio.ensure_future(calls.call("/slow", **how)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(
    ("many", "other"),
    [
        ({"key": "mine"}, {"key": "yours"}),
        ({"key": "mine"}, {"key": None}),
        ({"key": None}, {"key": "yours"}),
        ({"key": "wrong"}, {"key": "mine"}),
        ({"key": None}, {"key": None, "address": "10.0.0.2"}),
    ],
)
def test_who_calls_much_delays_nobody_else(many: dict, other: dict) -> None:
    async def check(calls: _Calls) -> None:
        tasks = await _begin(calls, AT_ONCE + 3, **many)
        assert len(calls.begun) == AT_ONCE
        assert await calls.call("/now", **other) == 200
        calls.end.set()
        assert set(await asyncio.gather(*tasks)) == {200}

    _run(check)


def test_probes_need_no_turn() -> None:
    async def check(calls: _Calls) -> None:
        tasks = await _begin(calls, 2, key=None)
        assert await calls.call("/now", key=None) == 503
        probe = asyncio.ensure_future(calls.call("/livez", key=None))
        await asyncio.sleep(0)
        assert calls.begun[-1] == "/livez"
        calls.end.set()
        assert {await probe, *await asyncio.gather(*tasks)} == {200}

    _run(check, most=2)


def test_what_nobody_waits_for_is_dropped_when_its_turn_comes() -> None:
    async def check(calls: _Calls) -> None:
        first = await _begin(calls, AT_ONCE)
        gone = await _begin(calls, 50, gone=True)
        last = await _begin(calls, 1)
        calls.end.set()
        assert set(await asyncio.gather(*first, *last)) == {200}
        assert set(await asyncio.gather(*gone)) == {499}
        assert len(calls.begun) == AT_ONCE + 1

    _run(check)


def test_too_many_that_wait_are_refused() -> None:
    async def check(calls: _Calls) -> None:
        tasks = await _begin(calls, 2000)
        calls.end.set()
        statuses = await asyncio.gather(*tasks)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) == len(calls.begun) > 300

    _run(check)


def test_a_call_that_only_waits_lets_others_go_first() -> None:
    async def check(calls: _Calls) -> None:
        waits = [asyncio.ensure_future(calls.call("/wait")) for _ in range(3 * AT_ONCE)]
        await asyncio.sleep(0)
        assert await calls.call("/now") == 200
        calls.end.set()
        assert set(await asyncio.gather(*waits)) == {200}

    _run(check, wait=True)


def test_a_cancelled_call_leaves_the_queue() -> None:
    async def check(calls: _Calls) -> None:
        tasks = await _begin(calls, AT_ONCE + 2)
        tasks[-1].cancel()
        tasks[0].cancel()
        await asyncio.wait(tasks[-1:] + tasks[:1])
        calls.end.set()
        assert set(await asyncio.gather(*tasks[1:-1])) == {200}

    _run(check)


@pytest.mark.slow
def test_a_flood_keeps_nobody_waiting() -> None:
    with serving(trained=False) as bench:
        reader = prepared(f"http://127.0.0.1:{bench.api}", bench.key)
        for kind in ("read_key", "no_key", "invalid"):
            noticed = flooded(bench, reader, kind, 400, 12.0)
            # 429: they have the flood's address, which may have too many connections.
            answers = noticed["answers"]
            assert {answer.split()[1] for answer in answers} <= {"200", "201", "429"}, noticed
            assert {"livez 200", "readyz 200", "forget 201"} <= set(answers), noticed
            for name in ("livez", "readyz", "forget"):
                assert noticed[name]["longest_s"] < _PATIENT_S, noticed
