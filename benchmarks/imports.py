"""Importing Parquet by reference beside rewriting it: ``python -m benchmarks.imports``.

Made-up rows of thirty columns (two of ids) in files as pyarrow writes them. Beside each other:

* *rewritten*: pyarrow reads each file with its defaults and writes it as Parquet again, encrypted
  and durable as stored objects are;
* *imported*: a worker's job imports the folder into a dataset of columns, with the embedded
  PostgreSQL as ``expunge up`` runs it; a second import of the same files then adds nothing.

Target: the first import at half the rate of rewriting, or more.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.table_schema import TableSchema
from app.operations import schema
from app.registry.datasets.imports import service as imports
from app.registry.datasets.imports.tables import ImportRow
from app.registry.datasets.service import define_dataset
from app.runtime.embedded import EmbeddedServers
from app.runtime.settings import Settings
from app.services import Services, create_keys, open_services
from app.storage.encryption import KEY_BYTES, Identity, encrypt
from app.storage.objects import LocalObjectStore

ROWS_IN_A_FILE = 500_000
ROWS_IN_A_GROUP = 125_000
LEAST_RATIO = 0.5
RESULTS = Path(__file__).parent / "results" / "imports.json"
_KINDS = {"float64": 10, "float32": 8, "int32": 6, "int64": 2, "timestamp": 1, "string": 1}


def main() -> None:
    """Measure, print and store."""
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=5_000_000)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--out", type=Path, default=RESULTS)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        summary = _measured(Path(directory), asked.rows, asked.rounds)
    asked.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


def _measured(directory: Path, rows: int, rounds: int) -> dict[str, object]:
    folder = directory / "exports"
    folder.mkdir()
    for first in range(0, rows, ROWS_IN_A_FILE):
        table = _table(first, min(ROWS_IN_A_FILE, rows - first))
        pq.write_table(table, folder / f"{first:09}.parquet", row_group_size=ROWS_IN_A_GROUP)
    size = sum(path.stat().st_size for path in folder.iterdir())
    rewritten: list[float] = []
    first_times: list[float] = []
    again_times: list[float] = []
    with _Worker(directory / "data", folder) as worker:
        for number in range(rounds):
            rewritten.append(_timed(lambda: _rewrite(folder, directory / "objects")))
            worker.define(f"members-{number}")
            first_times.append(worker.imported(f"members-{number}", added=rows))
            if number == 0:
                again_times.append(worker.imported(f"members-{number}", added=0))
        ratio = median(rewritten) / median(first_times)
        return {
            "rows": rows,
            "columns": 30,
            "parquet_mb": size / 1e6,
            "rounds": rounds,
            "rewritten_s": rewritten,
            "imported_s": first_times,
            "imported_again_s": again_times,
            "rows_per_s": rows / median(first_times),
            "rate_over_rewriting": ratio,
            "worker_peak_mb": worker.peak_mb,
            "met": ratio >= LEAST_RATIO,
        }


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _table(first: int, count: int) -> pa.Table:
    generator = np.random.default_rng(first)
    numbers = np.arange(first, first + count)
    columns = {
        "member": [f"m-{i:09}" for i in numbers],
        "person": [f"p-{i // 2:09}" for i in numbers],
    }
    for kind, many in _KINDS.items():
        for number in range(many):
            columns[f"{kind}_{number}"] = _column(kind, generator, count)
    return pa.table(columns)


def _column(kind: str, generator: np.random.Generator, count: int) -> pa.Array:
    if kind.startswith("float"):
        return pa.array(generator.normal(size=count).astype(kind))
    if kind == "string":
        return pa.array(np.array(["free", "pro", "team"])[generator.integers(0, 3, count)])
    if kind == "timestamp":
        moments = generator.integers(0, 2**40, count)
        return pa.array(moments, pa.timestamp("us"))
    return pa.array(generator.integers(0, 1000, count).astype(kind))


def _rewrite(folder: Path, objects: Path) -> None:
    store, key = LocalObjectStore(objects), os.urandom(KEY_BYTES)
    for path in sorted(folder.iterdir()):
        sink = pa.BufferOutputStream()
        pq.write_table(pq.read_table(path), sink, row_group_size=ROWS_IN_A_GROUP)
        content = sink.getvalue().to_pybytes()
        store.write(path.name, encrypt(content, key, Identity(path.name, "shard")))


class _Worker:
    """A service with the embedded servers, whose imports run in processes of their own."""

    def __init__(self, data_dir: Path, folder: Path) -> None:
        self._folder = folder
        data_dir.mkdir()
        self._environment = {
            "EXPUNGE_DATA_DIR": str(data_dir),
            "EXPUNGE_IMPORT_PREFIXES": folder.as_uri(),
        }
        os.environ.update(self._environment)
        self._servers = EmbeddedServers(data_dir)
        self._settings = Settings()

    def __enter__(self) -> Self:
        self._servers.start()
        schema.upgrade(self._servers.migration_url, service_url=self._servers.database_url)
        create_keys(self._settings)
        self._services: Services = open_services(self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._services.database.dispose()
        self._servers.stop()

    @property
    def peak_mb(self) -> float:
        """The most memory that a job has taken, or a process that decodes for it."""
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3

    def define(self, name: str) -> None:
        """Define a dataset of the thirty columns."""
        kept = {f"{kind}_{n}": kind for kind, many in _KINDS.items() for n in range(many)}
        columns = TableSchema.of(kept, record_id="member", subject_id="person")
        with self._services.database.transaction() as session:
            define_dataset(session, name=name, schema=columns)

    def imported(self, name: str, *, added: int) -> float:
        """Import all files; return how long the job took, without starting its process."""
        with self._services.database.transaction() as session:
            row = imports.request(
                session,
                dataset=name,
                url=self._folder.as_uri(),
                prefixes=self._settings.import_prefixes,
            )
        job = "from workers import jobs\nimport sys, time\ns = time.perf_counter()\n"
        job += "jobs.carry_out_import(sys.argv[1])\nprint(time.perf_counter() - s)"
        done = subprocess.run(
            [sys.executable, "-c", job, row.id], stdout=subprocess.PIPE, check=True
        )
        with self._services.database.transaction() as session:
            ended = session.get_one(ImportRow, row.id)
            if (ended.state, ended.added) != ("completed", added):
                raise RuntimeError(f"{ended.state}, {ended.added} added: {ended.failure_reason}")
        return float(done.stdout)


if __name__ == "__main__":
    main()
