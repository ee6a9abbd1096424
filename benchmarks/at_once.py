"""Requests that need no run: ``python -m benchmarks.at_once``.

The real API over the embedded PostgreSQL, one process, no dispatcher and no worker, over a linear
head whose release covers every record that is asked about. Measured are, after 1,000 and after
100,000 earlier requests to the same lineage: requests certified a second (at least 100), and from
POST to the answer with the signed certificate at a quarter of that rate (50 ms in the median, 100
for the slowest percent; at 100,000 at most 1.5 times the median at 1,000).
"""

import os
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import select

from app.access.tables import ApiKeyRow
from app.ledger.new_requests import Call, NewForgetRequest
from app.runtime.settings import Settings
from app.services import Services, open_services
from benchmarks import harness
from benchmarks.api_load import RECORDS, Bench, serving
from benchmarks.http_load import load

EARLIER = (1_000, 100_000)
CONNECTIONS = 16
ROUND_S = 5.0
ROUNDS = 3
LIMITS = {"per_s": 100, "median_ms": 50, "p99_ms": 100, "growth": 1.5}
_SHOWN = ("per_s", "median_ms", "p99_ms")
_TOGETHER = 500
POLICY = {
    "epsilon": 8.0,
    "mechanism": "tracked_release",
    "parameters": {"capacity": RECORDS * 9 // 10},
}


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what was measured after so many earlier requests."""
    measured = []
    with (
        tempfile.TemporaryDirectory(prefix="expunge-at-once-") as folder,
        serving(folder, policy=POLICY) as bench,
    ):
        services = open_services(Settings(data_dir=Path(folder) / "data"))
        for earlier in given.earlier:
            fill(services, bench, earlier)
            measured.append({"earlier_requests": bench.sent} | measure(bench))
    yield {
        "cores": os.cpu_count(),
        "connections": CONNECTIONS,
        "measured": measured,
        "growth": measured[-1]["median_ms"] / measured[0]["median_ms"],
    }


def table(document: dict[str, Any]) -> str:
    """Return rates and waiting."""
    rows = (
        (f"{each['earlier_requests']:,}", *(f"{each[key]:.0f}" for key in _SHOWN))
        for each in document["measured"]
    )
    columns = "requests a second | median, ms | slowest percent, ms"
    return harness.table(f"earlier requests | {columns}", rows)


def measure(bench: Bench) -> dict[str, Any]:
    """Return requests a second at full load, and milliseconds at a quarter of it."""
    how = {"connections": CONNECTIONS, "seconds": ROUND_S}
    full = [load(bench.api, bench.accept, **how) for _ in range(ROUNDS)]
    per_s = median(each.per_s for each in full)
    steady = [load(bench.api, bench.accept, **how, per_s=per_s / 4) for _ in range(ROUNDS)]
    return {
        "per_s": per_s,
        "median_ms": median(each.median_s for each in steady) * 1e3,
        "p99_ms": median(each.p99_s for each in steady) * 1e3,
        "errors": sum(each.errors for each in (*full, *steady)),
    }


def fill(services: Services, bench: Bench, count: int) -> None:
    """Have so many requests accepted in all, many in each transaction; all are certified."""
    with services.database.transaction() as session:
        key_id = session.scalars(select(ApiKeyRow.id)).first() or ""
    while bench.sent < count:
        calls = [
            Call(NewForgetRequest("data", record_ids=[bench.next_record()]), key_id, "benchmark")
            for _ in range(min(_TOGETHER, count - bench.sent))
        ]
        with services.database.transaction() as session:
            answers = services.acceptance.submit_all(session, calls)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer


def met(document: dict[str, Any]) -> bool:
    """Say whether all limits are kept."""
    return document["growth"] <= LIMITS["growth"] and all(
        each["errors"] == 0
        and each["per_s"] >= LIMITS["per_s"]
        and each["median_ms"] <= LIMITS["median_ms"]
        and each["p99_ms"] <= LIMITS["p99_ms"]
        for each in document["measured"]
    )


if __name__ == "__main__":
    options = {"--earlier": {"type": int, "nargs": "+", "default": EARLIER}}
    harness.main("at_once", __doc__, run, options=options, table=table, met=met)
