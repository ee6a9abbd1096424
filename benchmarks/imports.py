"""Importing Parquet by reference beside rewriting it: ``python -m benchmarks.imports``.

Made-up rows of thirty columns (two of ids) in files as pyarrow writes them. Beside each other:

* *rewritten*: pyarrow reads each file with its defaults and writes it as Parquet again, encrypted
  and durable as stored objects are;
* *imported*: a worker's job imports the folder into a dataset of columns, with the embedded
  PostgreSQL as ``expunge up`` runs it; a second import of the same files then adds nothing.

Target: the first import at half the rate of rewriting, or more.
"""

import os
import resource
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.table_schema import TableSchema
from app.registry.datasets.imports import service as imports
from app.registry.datasets.imports.tables import ImportRow
from app.registry.datasets.service import define_dataset
from app.runtime.settings import Settings
from app.services import Services
from app.storage.encryption import KEY_BYTES, Identity, encrypt
from app.storage.objects import LocalObjectStore
from benchmarks import harness

ROWS_IN_A_FILE = 500_000
ROWS_IN_A_GROUP = 125_000
LEAST_RATIO = 0.5
_KINDS = {"float64": 10, "float32": 8, "int32": 6, "int64": 2, "timestamp": 1, "string": 1}


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what was measured."""
    with harness.embedded() as data:
        directory = data / "benchmark"
        directory.mkdir()
        yield _measured(directory, given.rows, given.rounds)


def _measured(directory: Path, rows: int, rounds: int) -> dict[str, Any]:
    folder = directory / "exports"
    folder.mkdir()
    for first in range(0, rows, ROWS_IN_A_FILE):
        table = _table(first, min(ROWS_IN_A_FILE, rows - first))
        pq.write_table(table, folder / f"{first:09}.parquet", row_group_size=ROWS_IN_A_GROUP)
    size = sum(path.stat().st_size for path in folder.iterdir())
    rewritten: list[float] = []
    first_times: list[float] = []
    again_times: list[float] = []
    os.environ["EXPUNGE_IMPORT_PREFIXES"] = folder.as_uri()
    worker = _Worker(harness.new_services(), folder)
    for number in range(rounds):
        rewritten.append(harness.seconds_of(lambda: _rewrite(folder, directory / "objects"))[0])
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
        # The most memory that a job has taken, or a process that decodes for it.
        "worker_peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3,
        "met": ratio >= LEAST_RATIO,
    }


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
    """Imports, each in a process of its own."""

    def __init__(self, services: Services, folder: Path) -> None:
        self._services = services
        self._folder = folder

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
                prefixes=Settings().import_prefixes,
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
    options = {
        "--rows": {"type": int, "default": 5_000_000},
        "--rounds": {"type": int, "default": 1},
    }
    harness.main("imports", __doc__, run, options=options, met=lambda document: document["met"])
