"""What others notice of a flood of short connections: ``python -m benchmarks.flood [KIND …]``.

Starts the API over the embedded servers. Another process floods it from one address, at a steady
rate and whatever the answers take; a client that has waited for a second gives up and disconnects.
Meanwhile ``/livez``, ``/readyz`` and forget requests of another key are timed, each on a connection
of its own. Prints JSON: the seconds that they took, and what became of the flood's calls.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import httpx

from app.client import ExpungeClient
from app.registry.datasets.files import record_table, to_parquet
from benchmarks.api_load import Bench, serving
from benchmarks.http_load import Connection, call

PER_S = 620
SECONDS = 12.0
PATIENCE_S = 30.0
_GIVEN_UP_S = 1.0
_RECORDS = 2000
KINDS = {
    "no_key": [call("GET", "/")],
    "login": [call("GET", "/login")],
    "probes": [call("GET", "/readyz"), call("GET", "/livez")],
    "wrong_key": [call("GET", "/v1/models", key="expunge_wrong")],
    "read_key": [
        call("GET", "/v1/forget-requests", key="KEY"),
        call("GET", "/v1/models", key="KEY"),
    ],
    "waits": [call("GET", "/v1/models/none", key="KEY", headers="Prefer: wait=60")],
    "invalid": [call("POST", "/v1/forget-requests", key="KEY", body=b'{"records": 1}')],
    "closed_at_once": [b""],
}


def main() -> None:
    """Measure each kind of flood, and print."""
    options = argparse.ArgumentParser()
    options.add_argument("kinds", nargs="*", default=list(KINDS))
    options.add_argument("--per-s", type=int, default=PER_S)
    options.add_argument("--seconds", type=float, default=SECONDS)
    options.add_argument("--client", type=int, metavar="PORT", help="flood what listens there")
    chosen = options.parse_args()
    if chosen.client:
        (kind,) = chosen.kinds
        calls = [each.replace(b"KEY", os.environ["FLOOD_KEY"].encode()) for each in KINDS[kind]]
        print(json.dumps(asyncio.run(flood(chosen.client, calls, chosen.per_s, chosen.seconds))))
        return
    with (
        tempfile.TemporaryDirectory(prefix="expunge-flood-") as folder,
        serving(folder, trained=False) as bench,
    ):
        reader = prepared(f"http://127.0.0.1:{bench.api}", bench.key)
        document: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()}
        document["quiet"] = asyncio.run(others(bench, chosen.seconds / 2))
        for kind in chosen.kinds:
            document[kind] = flooded(bench, reader, kind, chosen.per_s, chosen.seconds)
    document["load_after"] = os.getloadavg()
    print(json.dumps(document, indent=1))


def prepared(url: str, key: str) -> str:
    """Make a dataset whose records may be forgotten; return another caller's key."""
    with ExpungeClient(url, key) as client:
        client.define_dataset("data", features={"shape": [1]}, classes=2)
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
    command = [sys.executable, "-m", "benchmarks.flood", kind, "--client", str(bench.api)]
    command += ["--per-s", str(per_s), "--seconds", str(seconds)]
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
                async with asyncio.timeout(PATIENCE_S), Connection(bench.api) as connection:
                    status, _ = await connection.send(message)
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
            async with asyncio.timeout(_GIVEN_UP_S), Connection(port) as connection:
                status = (await connection.send(message))[0] if message else 0
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
    main()
