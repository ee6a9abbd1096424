"""Who waits while a large push goes on: ``python -m benchmarks.lanes``.

The real API over the embedded PostgreSQL, one process. Forget requests arrive at a steady rate at
two datasets, first alone, then while 800,000 records are pushed into one of the two. No request at
the other dataset should wait for more than 100 ms, none at the same one for more than 500 ms.
"""

import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from app.client import ExpungeClient
from app.registry.datasets.files import record_table, to_parquet
from benchmarks.api_load import Bench, serving
from benchmarks.http_load import Connection, call

PUSHED = 800_000
NAMED = 20_000
PER_S = 20.0
QUIET_S = 15.0
LIMITS_MS = {"other": 100.0, "big": 500.0}
RESULTS = Path(__file__).parent / "results" / "lanes.json"


def main() -> None:
    """Measure, print, write; exit with 1 where somebody waited for too long."""
    with (
        tempfile.TemporaryDirectory(prefix="expunge-lanes-") as folder,
        serving(folder, trained=False) as bench,
    ):
        _prepare(bench)
        big = _demands(bench, "big", (f"named-{i}" for i in itertools.count()))
        other = _demands(bench, "other", (f"named-{i}" for i in itertools.count()))
        calls = {"other": other, "big": big}
        content = _records("pushed", PUSHED)
        quiet_until = time.monotonic() + QUIET_S
        quiet = asyncio.run(_measure(bench, calls, lambda: time.monotonic() < quiet_until))
        began = time.monotonic()
        with ThreadPoolExecutor(1) as thread:
            push = thread.submit(_push, bench, content)
            busy = asyncio.run(_measure(bench, calls, lambda: not push.done()))
        push.result()
        seconds = time.monotonic() - began
    document = {
        "cores": os.cpu_count(),
        "pushed_records": PUSHED,
        "push_s": seconds,
        "requests_per_s": PER_S,
        "quiet_ms": quiet,
        "during_push_ms": busy,
    }
    print(json.dumps(document, indent=1))
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    waited = any(busy[name]["max"] > limit for name, limit in LIMITS_MS.items())
    sys.exit(waited)


def _prepare(bench: Bench) -> None:
    with ExpungeClient(f"http://127.0.0.1:{bench.api}", bench.key) as client:
        for name in ("other", "big"):
            client.define_dataset(name, features={"shape": [4], "dtype": "float32"}, classes=2)
            client.push_records(name, _records("named", NAMED))


def _push(bench: Bench, content: bytes) -> None:
    with ExpungeClient(f"http://127.0.0.1:{bench.api}", bench.key, timeout_s=600) as client:
        client.push_records("big", content)


def _records(name: str, count: int) -> bytes:
    features = np.random.default_rng(1).normal(size=(count, 4)).astype(np.float32)
    return to_parquet(
        record_table(
            record_ids=[f"{name}-{i}" for i in range(count)],
            subject_ids=[f"{name}-subject-{i // 4}" for i in range(count)],
            labels=(features[:, 0] > 0).astype(np.int64),
            features=features,
        )
    )


def _demands(bench: Bench, dataset: str, ids: Iterator[str]) -> Callable[[], bytes]:
    def next_call() -> bytes:
        body = {"dataset": dataset, "record_ids": [next(ids)]}
        return call("POST", "/v1/forget-requests", key=bench.key, body=json.dumps(body).encode())

    return next_call


async def _measure(
    bench: Bench, calls: dict[str, Callable[[], bytes]], goes_on: Callable[[], bool]
) -> dict[str, dict[str, Any]]:
    async def at(next_call: Callable[[], bytes]) -> dict[str, Any]:
        taken: list[float] = []
        async with Connection(bench.api) as connection:
            due = time.perf_counter()
            while goes_on():
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                began = time.perf_counter()
                status, body = await connection.send(next_call())
                if status // 100 != 2:
                    raise RuntimeError(f"answer {status}: {body.decode()}")
                taken.append((time.perf_counter() - began) * 1e3)
                due = max(due + 1 / PER_S, time.perf_counter())
        taken.sort()
        return {
            "requests": len(taken),
            "median": taken[len(taken) // 2],
            "p99": taken[int(0.99 * (len(taken) - 1))],
            "max": taken[-1],
        }

    found = await asyncio.gather(*(at(next_call) for next_call in calls.values()))
    return dict(zip(calls, found, strict=True))


if __name__ == "__main__":
    main()
