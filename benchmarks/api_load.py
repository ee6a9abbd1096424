"""How many requests the API accepts and answers: ``python -m benchmarks.api_load``.

The real API over the embedded PostgreSQL, one process, beside a bare FastAPI application that does
one INSERT or SELECT of the same row with the same server and pool. Both take turns in one run.
Measured are: forget requests a second (at least 300), polls of a request a second (at least as many
as the bare application answers), the slowest percent at 80 % of the full load (under 10 times the
median; the middle one of three rounds), what a ledger of 100,000 requests changes (at most 20 %),
and the time from start to first answer (3 s). Then, over a linear head whose release covers every
record that is asked about, requests that need no run, certified a second (at least 100), and
from POST to the answer with the signed certificate at a quarter of that rate (50 ms in the median,
100 for the slowest percent; after 100,000 such requests at most 1.5 times the median after 1,000).
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import numpy as np
from fastapi import Body, FastAPI
from sqlalchemy import MetaData, insert, select, text

from app.access.tables import ApiKeyRow
from app.client import ExpungeClient
from app.ledger.new_requests import Call, NewForgetRequest
from app.ledger.tables import ForgetRequestRow
from app.registry.datasets.columns.parquet import to_parquet
from app.runtime.database import Database
from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import database_url
from app.runtime.settings import Settings
from app.services import Services, open_services
from benchmarks import harness
from benchmarks.http_load import Load, call, connected, load
from demo.service import data_dir_in, free_port, running_service
from demo.tables import record_table
from tests.support.arrays import array_schema, array_task

TABLE = "bare_requests"  # a copy of the ledger's, which ``serving`` makes
RECORDS = 150_000
FILLED = 100_000
CONNECTIONS = 8
ROUND_S = 4.0
ROUNDS = 5
STEADY_ROUNDS = 3
EARLIER = (1_000, 100_000)
AT_ONCE_CONNECTIONS = 16
LIMITS = {"accept_per_s": 300, "poll_ratio": 1.0, "p99_over_median": 10, "filled_ratio": 0.8}
AT_ONCE_LIMITS = {"per_s": 100, "median_ms": 50, "p99_ms": 100, "growth": 1.5}
START_LIMIT_S = 3.0
POLICY = {"epsilon": 1.0, "mechanism": "retraining"}
AT_ONCE_POLICY = {
    "epsilon": 8.0,
    "mechanism": "tracked_release",
    "parameters": {"capacity": RECORDS * 9 // 10},
}
_TOGETHER = 500
_SHOWN = ("id", "state", "record_count", "received_at", "due_at")


@dataclass
class Bench:
    """Two servers over one database."""

    api: int
    bare: int
    key: str
    settings: Settings
    database: Database
    start_s: float
    sent: int = 0

    def next_record(self) -> str:
        """A record that nobody has named yet."""
        self.sent += 1
        return f"record-{self.sent - 1}"

    def accept(self) -> bytes:
        """The next forget request."""
        body = {"dataset": "data", "record_ids": [self.next_record()]}
        return call("POST", "/v1/forget-requests", key=self.key, body=json.dumps(body).encode())

    def insert(self) -> bytes:
        """The same body, for the bare application."""
        body = {"dataset": "data", "record_ids": ["record-0"]}
        return call("POST", "/rows", body=json.dumps(body).encode())


def run(_: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what was measured over an empty and a filled ledger, and of requests without a run."""
    with serving() as bench:
        empty = measure(bench)
        fill(bench, FILLED)
        filled = measure(bench)
    yield {
        "cores": os.cpu_count(),
        "connections": CONNECTIONS,
        "start_to_first_answer_s": bench.start_s,
        "empty_ledger": empty,
        "filled_ledger": {"requests": FILLED, **filled},
        "filled_over_empty": {
            name: filled[name]["ratio"] / empty[name]["ratio"] for name in ("accept", "poll")
        },
        "at_once": list(at_once()),
    }


def at_once() -> Iterator[dict[str, Any]]:
    """Yield requests a second at full load, and milliseconds at a quarter of it."""
    how: dict[str, Any] = {"connections": AT_ONCE_CONNECTIONS, "seconds": ROUND_S}
    with serving(policy=AT_ONCE_POLICY) as bench:
        services = open_services(bench.settings)
        for earlier in EARLIER:
            accept_all(services, bench, earlier)
            full = [load(bench.api, bench.accept, **how) for _ in range(STEADY_ROUNDS)]
            rate = median(each.per_s for each in full)
            slow = how | {"per_s": rate / 4}
            steady = [load(bench.api, bench.accept, **slow) for _ in range(STEADY_ROUNDS)]
            yield {
                "earlier_requests": earlier,
                "per_s": rate,
                "median_ms": median(each.median_s for each in steady) * 1e3,
                "p99_ms": median(each.p99_s for each in steady) * 1e3,
                "errors": sum(each.errors for each in (*full, *steady)),
            }


def accept_all(services: Services, bench: Bench, count: int) -> None:
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


def table(document: dict[str, Any]) -> str:
    """Return rates beside the bare application's."""
    rows, filled = list[tuple[str, ...]](), document["filled_ledger"]
    after = f", {filled['requests']:,} requests in the ledger"
    for measured, ledger in ((document["empty_ledger"], ""), (filled, after)):
        for kind, name in (("accept", "accepting forget requests"), ("poll", "polling one")):
            of = measured[kind]
            slowest = of["at_80_percent"]["p99_over_median"]
            figures = (f"{of['per_s']:,.0f}", f"{of['ratio']:.2f}", f"{slowest:.1f}")
            rows.append((name + ledger, *figures))
    for each in document["at_once"]:
        name = f"requests that need no run, {each['earlier_requests']:,} before"
        slowest = each["p99_ms"] / each["median_ms"]
        rows.append((name, f"{each['per_s']:,.0f}", "", f"{slowest:.1f}"))
    columns = "calls a second | of a bare endpoint's | p99 over median"
    return harness.table(f" | {columns}", rows)


def measure(bench: Bench) -> dict[str, Any]:
    """Let both take turns at accepting, then at answering polls."""
    first = _one(bench.api, bench.accept())["id"]
    row = _one(bench.bare, bench.insert())["id"]
    poll = call("GET", f"/v1/forget-requests/{first}", key=bench.key)
    select = call("GET", f"/rows/{row}")
    return {
        "accept": _compare(bench, bench.accept, bench.insert),
        "poll": _compare(bench, lambda: poll, lambda: select),
    }


def _compare(bench: Bench, ours: Callable[[], bytes], bare: Callable[[], bytes]) -> dict[str, Any]:
    loads: dict[str, list[Load]] = {"ours": [], "bare": []}
    turns = [("ours", bench.api, ours), ("bare", bench.bare, bare)]
    for round_ in range(ROUNDS):
        for name, port, message in turns if round_ % 2 else reversed(turns):
            loads[name].append(load(port, message, connections=CONNECTIONS, seconds=ROUND_S))
    rates = {name: [each.per_s for each in of] for name, of in loads.items()}
    how = {"connections": CONNECTIONS * 4, "seconds": 2 * ROUND_S}
    rate = 0.8 * median(rates["ours"])
    steady = [load(bench.api, ours, **how, per_s=rate) for _ in range(STEADY_ROUNDS)]
    return {
        "per_s": median(rates["ours"]),
        "bare_per_s": median(rates["bare"]),
        "ratio": median(o / b for o, b in zip(rates["ours"], rates["bare"], strict=True)),
        "at_80_percent": {
            "median_ms": [each.median_s * 1e3 for each in steady],
            "p99_ms": [each.p99_s * 1e3 for each in steady],
            "p99_over_median": median(each.p99_s / each.median_s for each in steady),
        },
        "errors": sum(each.errors for of in (*loads.values(), steady) for each in of),
    }


@contextmanager
def serving(*, trained: bool = True, policy: Mapping[str, Any] = POLICY) -> Iterator[Bench]:
    """Run both servers, over a trained model if one is asked for, and no dispatcher or worker."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="expunge-load-")))
        settings = Settings(data_dir=data_dir_in(folder))
        with running_service(folder) as client:
            if trained:
                _train(client, policy)
        servers = EmbeddedServers(settings.data_dir)
        running.callback(servers.stop)
        servers.start()
        api = _serving(settings.data_dir, "app.cli", "serve")
        start_s, api_port = harness.seconds_of(lambda: running.enter_context(api))
        factory = ("--factory", "benchmarks.api_load:bare", "--no-access-log")
        bare_port = running.enter_context(_serving(settings.data_dir, "uvicorn", *factory))
        database = Database(servers.migration_url)
        running.callback(database.dispose)
        with database.transaction() as session:
            copy = f"CREATE TABLE {TABLE} (LIKE forget_requests INCLUDING ALL)"
            session.execute(text(copy))
            session.execute(text(f"GRANT SELECT, INSERT ON {TABLE} TO PUBLIC"))
        key = settings.admin_key_file.read_text()
        yield Bench(api_port, bare_port, key, settings, database, start_s)


def _train(client: ExpungeClient, policy: Mapping[str, Any]) -> None:
    client.define_dataset("data", **array_schema(4).to_json())
    features = np.random.default_rng(0).normal(size=(RECORDS, 4)).astype(np.float32)
    names = [f"record-{i}" for i in range(RECORDS)]
    records = record_table(record_ids=names, labels=features[:, 0] > 0, features=features)
    client.push_records("data", to_parquet(records))
    model: dict[str, Any] = {"name": "head", "dataset": "data", "policy": dict(policy)}
    model |= {"task": array_task(4), "architecture": {"name": "linear_head"}}
    model["recipe"] = {"epochs": 1, "batch_size": 8192, "held_out_fraction": 0.0}
    client.define_model(model)
    client.wait_for_model("head", timeout_s=300.0)


def fill(bench: Bench, count: int) -> None:
    """Have so many requests in the ledger and in the bare table, all of them completed."""
    accept_all(open_services(bench.settings), bench, count)
    with bench.database.transaction() as session:
        for statement in _COMPLETE:
            session.execute(text(statement))
    engine = bench.database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("VACUUM ANALYZE"))


_COMPLETE = (
    "UPDATE obligations SET state = 'cancelled'",
    "UPDATE forget_requests SET state = 'certified'",
    "UPDATE forget_requests SET state = 'completed', completed_at = now()",
    "INSERT INTO bare_requests SELECT * FROM forget_requests",
)


def met(document: dict[str, Any]) -> bool:
    """Say whether all limits are kept."""
    ledgers, once = (document["empty_ledger"], document["filled_ledger"]), document["at_once"]
    calls = [ledger[name] for ledger in ledgers for name in ("accept", "poll")]
    return (
        not any(each["errors"] for each in (*calls, *once))
        and min(ledger["accept"]["per_s"] for ledger in ledgers) >= LIMITS["accept_per_s"]
        and min(ledger["poll"]["ratio"] for ledger in ledgers) >= LIMITS["poll_ratio"]
        and max(of["at_80_percent"]["p99_over_median"] for of in calls) < LIMITS["p99_over_median"]
        and min(document["filled_over_empty"].values()) >= LIMITS["filled_ratio"]
        and document["start_to_first_answer_s"] < START_LIMIT_S
        and min(each["per_s"] for each in once) >= AT_ONCE_LIMITS["per_s"]
        and max(each["median_ms"] for each in once) <= AT_ONCE_LIMITS["median_ms"]
        and max(each["p99_ms"] for each in once) <= AT_ONCE_LIMITS["p99_ms"]
        and once[-1]["median_ms"] <= AT_ONCE_LIMITS["growth"] * once[0]["median_ms"]
    )


def _one(port: int, message: bytes) -> Any:
    async def sent() -> tuple[int, bytes]:
        async with connected(port) as send:
            return await send(message)

    status, body = asyncio.run(sent())
    harness.require(status // 100 == 2, f"answer {status}: {body.decode()}")
    return json.loads(body)


@contextmanager
def _serving(data_dir: Path, *command: str) -> Iterator[int]:
    """Run a server over a data directory; yield its port once it answers."""
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EXPUNGE_")}
    environment |= {"EXPUNGE_DATA_DIR": str(data_dir)}
    environment |= dict.fromkeys(("EXPUNGE_PORT", "UVICORN_PORT"), str(port))
    with subprocess.Popen([sys.executable, "-m", *command], env=environment) as process:
        try:
            while True:
                harness.require(process.poll() is None, "it serves")
                with suppress(httpx.TransportError):
                    httpx.get(f"http://127.0.0.1:{port}/livez")
                    break
                time.sleep(0.02)
            yield port
        finally:
            process.terminate()


def bare() -> FastAPI:
    """Return what the API is measured against, over the configured database with its own pool."""
    api = FastAPI()
    database = Database(database_url(Settings()))
    table = ForgetRequestRow.__table__.to_metadata(MetaData(), name=TABLE)  # type: ignore[attr-defined]

    @api.post("/rows", status_code=202)
    def insert_row(
        dataset: Annotated[str, Body()], record_ids: Annotated[list[str], Body()]
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"id": f"fr_{secrets.token_hex(16)}", "dataset_id": dataset}
        row |= {"api_key_id": "key", "record_count": len(record_ids)}
        row |= {"state": "accepted", "forget_epoch": 1, "push_count": 1}
        row |= dict.fromkeys(("request_digest", "salt"), bytes(32))
        row |= dict.fromkeys(("received_at", "due_at"), datetime.now(UTC))
        with database.transaction() as session:
            session.execute(insert(table), row)
        return {"id": row["id"], "state": "accepted"}

    @api.get("/rows/{row_id}")
    def select_row(row_id: str) -> dict[str, Any]:
        with database.transaction() as session:
            row = session.execute(select(table).where(table.c.id == row_id)).mappings().one()
        return {name: row[name] for name in _SHOWN}

    return api


if __name__ == "__main__":
    harness.main("api_load", __doc__, run, table=table, met=met)
