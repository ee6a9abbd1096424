"""The memory of the API's process after much was asked of it at once."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.registry.datasets.columns.parquet import to_parquet
from app.runtime.settings import Settings
from demo.tables import record_table
from tests.support.arrays import array_schema
from tests.support.patience import PATIENCE_S, until
from tests.support.service import running

_RECORDS, _WIDTH = 2000, 1024
_POLLS = 300
_SETTLED = 1.5


def _file(push: int) -> bytes:
    """Return some 8 MB of records."""
    names = [f"record-{push}-{i}" for i in range(_RECORDS)]
    features = [[float(i ^ j ^ push) for j in range(_WIDTH)] for i in range(_RECORDS)]
    labels = [i % 2 for i in range(_RECORDS)]
    table = record_table(
        record_ids=names, subject_ids=[None] * _RECORDS, labels=labels, features=features
    )
    return to_parquet(table)


@pytest.mark.slow
def test_memory_comes_back_after_a_burst(tmp_path: Path) -> None:
    with running(tmp_path / "data") as service:
        key = Settings(data_dir=service.data_dir).admin_key_file.read_text()
        options: dict[str, Any] = {
            "base_url": service.url,
            "headers": {"Authorization": f"Bearer {key}"},
        }
        api = service.part("api")
        with httpx.Client(**options, timeout=PATIENCE_S) as client:
            dataset = {"name": "data", **array_schema(_WIDTH).to_json()}
            assert client.post("/v1/datasets", json=dataset).status_code == 201
            content = _file(0)

            def push(_: int) -> int:
                return client.put("/v1/datasets/data/records", content=content).status_code

            def preview(count: int) -> int:
                names = [f"nobody-{i}-{'x' * 60}" for i in range(count)]
                body = {"dataset": "data", "record_ids": names}
                return client.post("/v1/forget-requests/preview", json=body).status_code

            assert (push(0), preview(10)) == (200, 422)
            before = api.memory_info().rss
            with ThreadPoolExecutor(16) as callers:
                pushed = Counter(callers.map(push, range(48)))
                previewed = Counter(callers.map(preview, [100_000, 3000] * 16))
            waited = asyncio.run(_polls(options))
            assert (set(pushed), set(previewed), set(waited)) == ({200}, {422}, {200})
            until(lambda: api.memory_info().rss <= _SETTLED * before)


async def _polls(options: dict[str, Any]) -> Counter[int]:
    limits = httpx.Limits(max_connections=_POLLS)
    async with httpx.AsyncClient(**options, limits=limits, timeout=PATIENCE_S) as client:
        answers = await asyncio.gather(
            *(
                client.get("/v1/forget-requests", headers={"Prefer": "wait=2"})
                for _ in range(_POLLS)
            )
        )
    return Counter(answer.status_code for answer in answers)
