"""No call keeps the event loop from all others, whatever its body.

What is counted is the processor time that the loop's thread spends in one go, so that neither a
slow machine nor a busy one changes the verdict. Each call is made once before it counts,
since it has modules to import and statements to compile; of three that hold the loop, the shortest
counts.
"""

import asyncio
import gc
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from app.cli.application import create_app
from app.services import Services
from tests.support.largest_bodies import largest_bodies
from tests.support.patience import PATIENCE_S
from tests.support.serving import serve
from tests.support.workshop import DATASET, Workshop

MOST_S = 0.1
FILE_BYTES = 256 * 1024**2
JSON = {"Content-Type": "application/json"}
NAMES = {"name": "model", "number": "1", "index": "0"}


class LoopTimes:
    """The longest time that an event loop of another thread was held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._longest_s = 0.0
        self._at_work = threading.Lock()
        run, here = asyncio.Handle._run, threading.get_ident()

        def timed(handle: asyncio.Handle) -> None:
            if threading.get_ident() == here:
                run(handle)
                return
            with self._at_work:
                before = time.thread_time()
                run(handle)
                self._longest_s = max(self._longest_s, time.thread_time() - before)

        monkeypatch.setattr(asyncio.Handle, "_run", timed)

    def of(self, call: Callable[[], object]) -> float:
        self._longest_s = 0.0
        call()
        with self._at_work:  # an answer may come before what sent it has ended
            return self._longest_s


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopTimes]:
    times = LoopTimes(monkeypatch)
    gc.collect()
    gc.disable()  # the service keeps its garbage collections short by itself
    yield times
    gc.enable()


@pytest.fixture
def client(services: Services, workshop: Workshop, admin_key: str) -> Iterator[httpx.Client]:
    """A client of a service with a model that has released and forgotten."""
    workshop.define(NAMES["name"])
    workshop.work()
    headers = {"Authorization": f"Bearer {admin_key}"}
    with (
        serve(create_app(services)) as url,
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as client,
    ):
        yield client


def _calls(client: httpx.Client) -> Iterator[tuple[str, Callable[[], Any]]]:
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            name, filled = f"{method.upper()} {path}", path
            for parameter, value in NAMES.items():
                filled = filled.replace(f"{{{parameter}}}", value)
            if "application/json" not in operation.get("requestBody", {}).get("content", {}):
                yield name, partial(client.request, method, filled)
                continue
            for number, body in enumerate(largest_bodies(name, dataset=DATASET)):
                content = json.dumps(body).encode()
                call = partial(client.request, method, filled, content=content, headers=JSON)
                yield f"{name}, body {number} of {len(content)} bytes", call


@pytest.mark.nightly
def test_no_operation_holds_the_loop_with_its_largest_body(
    loop: LoopTimes, client: httpx.Client
) -> None:
    held: dict[str, float] = {}
    for name, call in _calls(client):
        call()
        for _ in range(3):
            held[name] = min(held.get(name, math.inf), loop.of(call))
            if held[name] <= MOST_S:
                break
    assert len(held) > 60
    assert {name: held_s for name, held_s in held.items() if held_s > MOST_S} == {}


@pytest.mark.parametrize(  # 256 MiB each
    "path",
    [
        pytest.param(f"datasets/{DATASET}/records", marks=pytest.mark.slow),
        pytest.param("models/model/weights", marks=pytest.mark.nightly),
    ],
)
def test_a_file_does_not_hold_the_loop(loop: LoopTimes, client: httpx.Client, path: str) -> None:
    client.put(f"/v1/{path}", content=b"a file")
    call = partial(client.put, f"/v1/{path}", content=bytes(FILE_BYTES))
    assert loop.of(call) < MOST_S


def test_the_watchdog_sees_what_holds_the_loop(loop: LoopTimes, services: Services) -> None:
    async def busy() -> None:
        end = time.thread_time() + 2 * MOST_S
        while time.thread_time() < end:
            pass

    app = create_app(services)
    app.add_api_route("/busy", busy)
    with serve(app) as url:
        assert loop.of(lambda: httpx.get(f"{url}/busy", timeout=PATIENCE_S)) > MOST_S
