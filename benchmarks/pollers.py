"""How many callers one API process can keep waiting: ``Prefer: wait`` by many at once.

    python -m benchmarks.pollers [--pollers 1000] [--wait 20]

Starts ``expunge up`` in a temporary directory, lets all pollers wait for one forget request, and
cancels it once they do. Prints the API process's memory (resident, MB) before, while and after they
wait, how many answers came with the new state, and how many failed.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil

from app.registry.datasets.files import record_table, to_parquet
from app.runtime.settings import Settings
from tests.support.service import Service

_MB = 1024**2


def main() -> None:
    """Measure and print one line of JSON."""
    options = argparse.ArgumentParser()
    options.add_argument("--pollers", type=int, default=1000)
    options.add_argument("--wait", type=int, default=60)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        service = Service(Path(directory) / "data")
        try:
            service.start()
            json.dump(_measure(service, chosen.pollers, chosen.wait), sys.stdout)
            sys.stdout.write("\n")
        finally:
            service.discard()


def _measure(service: Service, pollers: int, wait_s: int) -> dict[str, object]:
    key = Settings(data_dir=service.data_dir).admin_key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
        request = _open_request(client)
        api = service.part("api")
        before = api.memory_info().rss
        waiting = _Waiting(service.url, {**headers, "Prefer": f"wait={wait_s}"}, request, pollers)
        return {
            "pollers": pollers,
            "rss_mb_before": round(before / _MB),
            **asyncio.run(waiting.run(client, api)),
            "rss_mb_after": round(api.memory_info().rss / _MB),
        }


def _open_request(client: httpx.Client) -> str:
    """Return the path of a request that stays accepted: its model waits an hour for more."""
    client.post(
        "/v1/datasets", json={"name": "d", "features": {"shape": [2]}, "classes": 2}
    ).raise_for_status()
    records = record_table(
        record_ids=[f"r{i}" for i in range(200)],
        subject_ids=[None] * 200,
        labels=[i % 2 for i in range(200)],
        features=[[i / 200, 1.0] for i in range(200)],
    )
    client.put("/v1/datasets/d/records", content=to_parquet(records)).raise_for_status()
    model = {
        "name": "m",
        "dataset": "d",
        "architecture": {"name": "logistic"},
        "policy": {"window_s": 3600.0, "first_release": "as_trained", "epsilon": 5.0},
    }
    client.post("/v1/models", json=model).raise_for_status()
    while client.get("/v1/models/m").json()["certified"] is None:
        time.sleep(0.2)
    for number in range(200):
        body = {"dataset": "d", "record_ids": [f"r{number}"]}
        answer = client.post("/v1/forget-requests", json=body).raise_for_status()
        if answer.json()["state"] == "accepted":
            return str(answer.headers["location"])
    raise RuntimeError("every record was held out")


class _Waiting:
    def __init__(self, url: str, headers: dict[str, str], path: str, count: int) -> None:
        self._url, self._headers, self._path, self._count = url, headers, path, count

    async def run(self, client: httpx.Client, api: psutil.Process) -> dict[str, object]:
        limits = httpx.Limits(max_connections=self._count)
        async with httpx.AsyncClient(
            base_url=self._url, headers=self._headers, limits=limits, timeout=120
        ) as pollers:
            polls = [asyncio.create_task(self._poll(pollers)) for _ in range(self._count)]
            peak = 0
            while len(api.net_connections("tcp")) < self._count or peak == 0:
                await asyncio.sleep(0.5)
                peak = max(peak, api.memory_info().rss)
            await asyncio.sleep(8)  # all have been authorised and have read once
            peak = max(peak, api.memory_info().rss)
            threads, files = api.num_threads(), api.num_fds()
            started = time.monotonic()
            await asyncio.to_thread(client.delete, self._path)
            outcomes = Counter(await asyncio.gather(*polls))
            peak = max(peak, api.memory_info().rss)
        return {
            "rss_mb_waiting": round(peak / _MB),
            "threads": threads,
            "open_files": files,
            "seconds_to_tell_all": round(time.monotonic() - started, 2),
            "outcomes": dict(outcomes),
        }

    async def _poll(self, client: httpx.AsyncClient) -> str:
        try:
            answer = await client.get(self._path)
        except httpx.HTTPError as error:
            return type(error).__name__
        return answer.json().get("state", str(answer.status_code))


if __name__ == "__main__":
    main()
