"""Training on four times the memory that a worker may use: ``python -m benchmarks.streaming``.

A network of a million weights, and a gibibyte of records that do not compress. The same run by
turns with all of them in memory and streamed by a worker that may use 256 MiB, each in a forked
process of its own, as a worker's runs are. Compared are the seconds of the training itself and of
the whole run, and the peak of resident memory with the allowance. The aims: at least 0.8 times the
speed, and at most 300 MB above the allowance.
"""

import os
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from app.domain.architectures import ArchitectureSpec
from app.domain.policy import Policy
from app.domain.schema import TableSchema
from app.domain.states import FirstRelease
from benchmarks import harness
from benchmarks.harness import in_child
from demo.tables import record_table
from workers import jobs
from workers.data.memory import VARIABLE

FEATURES: Final = 2048
ROWS_A_FILE: Final = 1024
HIDDEN: Final = (448, 160)
RECIPE: Final = {"epochs": 2, "batch_size": 128, "learning_rate": 0.05, "held_out_fraction": 0.01}
ALLOWED: Final = 256 * 1024**2
PLENTY: Final = 8 * 1024**3


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what was measured."""
    with harness.embedded():
        in_child(lambda: _set_up(given.records))
        _, idle = in_child(lambda: None)
        rows = [
            _measured(f"{arm}-{turn}", arm, allowed)
            for turn in range(given.rounds)
            for arm, allowed in (("memory", PLENTY), ("streamed", ALLOWED))
        ]
    yield {
        "records": given.records,
        "record_bytes": FEATURES * 4 + 8,
        "allowed_bytes": ALLOWED,
        "threads": torch.get_num_threads(),
        "rows": rows,
        **{f"{what}_speed": _speed(rows, what) for what in ("training_s", "run_s", "cpu_s")},
        "idle_bytes": int(idle),
        "above_allowance_mb": max(
            (row["peak_bytes"] - ALLOWED) / 1e6 for row in rows if row["arm"] == "streamed"
        ),
    }


def table(document: dict[str, Any]) -> str:
    """Return the runs."""
    kinds = ("training_s", "run_s", "cpu_s")
    rows = (
        (row["arm"], *(f"{row[kind]:.1f}" for kind in kinds), f"{row['peak_bytes'] / 1e6:,.0f}")
        for row in document["rows"]
    )
    return harness.table("run | training, s | whole run, s | processor, s | peak, MB", rows)


def _speed(rows: list[dict[str, Any]], what: str) -> float:
    """Return the speed of streaming as a share of the speed in memory, of the quickest of each."""
    best = {arm: min(r[what] for r in rows if r["arm"] == arm) for arm in ("memory", "streamed")}
    return round(best["memory"] / best["streamed"], 3)


_TASK = {
    "name": "classification",
    "inputs": [{"name": "features", "kind": "array", "shape": [FEATURES]}],
    "target": {"column": "label", "classes": [*range(10)]},
}


def _set_up(records: int) -> None:
    columns = {"features": f"list<float32, {FEATURES}>", "label": "int8"}
    schema = TableSchema.of(columns, record_id="record_id")
    harness.fill(harness.new_services(), "data", schema, _files(records))


def _files(records: int) -> Iterator[Any]:
    generator = np.random.default_rng(0)
    for first in range(0, records, ROWS_A_FILE):
        features = generator.standard_normal((ROWS_A_FILE, FEATURES), dtype=np.float32)
        names = [f"record-{number}" for number in range(first, first + ROWS_A_FILE)]
        labels = features[:, :10].argmax(axis=1)
        yield record_table(record_ids=names, labels=labels, features=features)


def _measured(name: str, arm: str, allowed: int) -> dict[str, Any]:
    """Define a model that is trained and released as it is, and carry out its run."""
    os.environ[VARIABLE] = str(allowed)
    policy = Policy(mechanism="retraining", first_release=FirstRelease.AS_TRAINED)
    network = ArchitectureSpec("mlp", {"hidden": list(HIDDEN)})
    learns = {"task": _TASK, "architecture": network, "recipe": RECIPE}
    run_id, _ = in_child(lambda: harness.defined_run(name, **learns, policy=policy))
    before, started = _children_s(), time.perf_counter()
    _, peak = in_child(lambda: jobs.execute_run(run_id))
    run_s, cpu_s = time.perf_counter() - started, _children_s() - before
    phases, _ = in_child(lambda: harness.phases_of(run_id))
    return {
        "arm": arm,
        "training_s": phases["training"],
        "run_s": round(run_s, 2),
        "cpu_s": round(cpu_s, 2),
        "peak_bytes": int(peak),
    }


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    options = {
        "--records": {"type": int, "default": 131_072},
        "--rounds": {"type": int, "default": 2},
    }
    harness.main("streaming", __doc__, run, options=options, table=table)
