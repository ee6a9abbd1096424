"""Importing Parquet by reference beside rewriting it: ``python -m benchmarks.imports``.

Made-up rows of thirty columns (two of ids) in files as pyarrow writes them. pyarrow reads each file
and writes it again, encrypted and durable as stored objects are; beside that a worker's job imports
the folder into a dataset of columns, and a second import adds nothing. Target: the first import at
half the rate of rewriting, or more.
"""

import os
import resource
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.domain.schema import TableSchema
from app.registry.datasets.imports import service as imports
from app.registry.datasets.service import define_dataset
from app.registry.datasets.tables import ImportRow
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
        (data / "exports").mkdir()
        yield _measured(data / "exports", data / "rewritten", given.rows, given.rounds)


def _measured(folder: Path, objects: Path, rows: int, rounds: int) -> dict[str, Any]:
    for first in range(0, rows, ROWS_IN_A_FILE):
        table = _table(first, min(ROWS_IN_A_FILE, rows - first))
        pq.write_table(table, folder / f"{first:09}.parquet", row_group_size=ROWS_IN_A_GROUP)
    os.environ["EXPUNGE_IMPORT_PREFIXES"] = folder.as_uri()
    services = harness.new_services()
    rewritten, imported = list[float](), list[float]()
    for number in range(rounds):
        rewritten.append(harness.seconds_of(lambda: _rewrite(folder, objects))[0])
        imported.append(_imported(services, f"members-{number}", folder, added=rows))
    again = _imported(services, "members-0", folder, added=0)
    ratio = median(rewritten) / median(imported)
    return {
        "rows": rows,
        "columns": len(_table(0, 1).column_names),
        "parquet_mb": sum(path.stat().st_size for path in folder.iterdir()) / 1e6,
        "rounds": rounds,
        "rewritten_s": rewritten,
        "imported_s": imported,
        "imported_again_s": [again],
        "rows_per_s": rows / median(imported),
        "rate_over_rewriting": ratio,
        # The most memory that a job has taken, or a process that decodes for it.
        "worker_peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3,
        "met": ratio >= LEAST_RATIO,
    }


def _table(first: int, count: int) -> pa.Table:
    generator, numbers = np.random.default_rng(first), range(first, first + count)
    makes: dict[str, Callable[[], pa.Array]] = {
        "string": lambda: pa.array(np.array(["free", "pro"])[generator.integers(0, 2, count)]),
        "timestamp": lambda: pa.array(generator.integers(0, 2**40, count), pa.timestamp("us")),
    }
    columns = {
        "member": pa.array([f"m-{i:09}" for i in numbers]),
        "person": pa.array([f"p-{i // 2:09}" for i in numbers]),
    }
    for kind, many in _KINDS.items():
        plain = partial(
            lambda kind: pa.array((1e3 * generator.normal(size=count)).astype(kind)), kind
        )
        columns |= {f"{kind}_{number}": makes.get(kind, plain)() for number in range(many)}
    return pa.table(columns)


def _rewrite(folder: Path, objects: Path) -> None:
    store, key = LocalObjectStore(objects), os.urandom(KEY_BYTES)
    for path in sorted(folder.iterdir()):
        sink = pa.BufferOutputStream()
        pq.write_table(pq.read_table(path), sink, row_group_size=ROWS_IN_A_GROUP)
        content = sink.getvalue().to_pybytes()
        store.write(path.name, encrypt(content, key, Identity(path.name, "shard")))


def _imported(services: Services, name: str, folder: Path, *, added: int) -> float:
    """Import all files; return how long the job took, without starting its process."""
    kept = {f"{kind}_{n}": kind for kind, many in _KINDS.items() for n in range(many)}
    columns = TableSchema.of(kept, record_id="member", subject_id="person")
    with services.database.transaction() as session:
        if added:
            define_dataset(session, name=name, schema=columns)
        allowed = Settings().import_prefixes
        row = imports.request(session, dataset=name, url=folder.as_uri(), prefixes=allowed)
    job = "from workers import jobs\nimport sys, time\ns = time.perf_counter()\n"
    job += "jobs.carry_out_import(sys.argv[1])\nprint(time.perf_counter() - s)"
    command = [sys.executable, "-c", job, row.id]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    with services.database.transaction() as session:
        ended = session.get_one(ImportRow, row.id)
        found = f"{ended.state}, {ended.added} added: {ended.failure_reason}"
        harness.require((ended.state, ended.added) == ("completed", added), found)
    return float(done.stdout)


if __name__ == "__main__":
    options = {
        "--rows": {"type": int, "default": 5_000_000},
        "--rounds": {"type": int, "default": 1},
    }
    harness.main("imports", __doc__, run, options=options, met=lambda document: document["met"])
