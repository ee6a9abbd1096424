"""A flood of short connections from one address, and what other callers notice of it.

Another process floods the API at a steady rate and whatever the answers take; a client that has
waited for a second gives up and disconnects. Meanwhile ``/livez``, ``/readyz`` and forget requests
of another key are timed, each on a connection of its own.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import httpx

from app.client import ExpungeClient
from app.registry.datasets.columns.parquet import to_parquet
from benchmarks.api_load import Bench
from benchmarks.http_load import call, connected
from demo.tables import record_table
from tests.support.arrays import array_schema

PATIENCE_S = 30.0
_GIVEN_UP_S = 1.0
_RECORDS = 2000
KINDS = {
    "no_key": [call("GET", "/")],
    "read_key": [
        call("GET", "/v1/forget-requests", key="KEY"),
        call("GET", "/v1/models", key="KEY"),
    ],
    "invalid": [call("POST", "/v1/forget-requests", key="KEY", body=b'{"records": 1}')],
}


def prepared(url: str, key: str) -> str:
    """Make a dataset whose records may be forgotten; return another caller's key."""
    with ExpungeClient(url, key) as client:
        client.define_dataset("data", **array_schema(1).to_json())
        records = record_table(
            record_ids=[f"record-{i}" for i in range(_RECORDS)],
            subject_ids=[None] * _RECORDS,
            labels=[i % 2 for i in range(_RECORDS)],
            features=[[0.5]] * _RECORDS,
        )
        client.push_records("data", to_parquet(records))
    wanted = {"name": "reader", "scopes": ["models:read", "forget:read", "forget:write"]}
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(f"{url}/v1/api-keys", json=wanted, headers=headers, timeout=PATIENCE_S)
    return str(answer.raise_for_status().json()["secret"])


def flooded(bench: Bench, key: str, kind: str, per_s: int, seconds: float) -> dict[str, Any]:
    """Time other callers during one flood."""
    command = [sys.executable, "-m", __name__, kind, *map(str, (bench.api, per_s, seconds))]
    environment = os.environ | {"FLOOD_KEY": key}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        time.sleep(2.0)
        noticed = asyncio.run(others(bench, seconds - 3.0))
        told, _ = process.communicate()
    return noticed | {"flood": json.loads(told)}


async def others(bench: Bench, seconds: float) -> dict[str, Any]:
    """Time what other callers get, each a few times a second."""
    began = time.perf_counter()
    taken: dict[str, list[float]] = {"livez": [], "readyz": [], "forget": []}
    statuses: Counter[str] = Counter()

    async def go(name: str) -> None:
        while time.perf_counter() < began + seconds:
            message = bench.accept() if name == "forget" else call("GET", f"/{name}")
            start = time.perf_counter()
            try:
                async with asyncio.timeout(PATIENCE_S), connected(bench.api) as send:
                    status, _ = await send(message)
                    statuses[f"{name} {status}"] += 1
            except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
                statuses[f"{name} {type(error).__name__}"] += 1
            taken[name].append(time.perf_counter() - start)
            await asyncio.sleep(0.1)

    await asyncio.gather(*(go(name) for name in taken))
    return {
        name: {"median_s": round(median(each), 3), "longest_s": round(max(each), 3)}
        for name, each in taken.items()
    } | {"answers": dict(sorted(statuses.items()))}


async def flood(port: int, calls: Sequence[bytes], per_s: int, seconds: float) -> dict[str, int]:
    """Open so many connections a second, for so long; return how the calls ended."""
    ended: Counter[str] = Counter()

    async def one(message: bytes) -> None:
        try:
            async with asyncio.timeout(_GIVEN_UP_S), connected(port) as send:
                status = (await send(message))[0] if message else 0
            ended[str(status) if status else "closed"] += 1
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            ended[type(error).__name__] += 1

    began = time.perf_counter()
    async with asyncio.TaskGroup() as going:
        for number in range(round(per_s * seconds)):
            await asyncio.sleep(began + number / per_s - time.perf_counter())
            going.create_task(one(calls[number % len(calls)]))
    return dict(sorted(ended.items()))


if __name__ == "__main__":
    _kind, _port, _per_s, _seconds = sys.argv[1:]
    _calls = [each.replace(b"KEY", os.environ["FLOOD_KEY"].encode()) for each in KINDS[_kind]]
    print(json.dumps(asyncio.run(flood(int(_port), _calls, int(_per_s), float(_seconds)))))
