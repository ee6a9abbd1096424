"""Training on four times the memory that a worker may use: ``python -m benchmarks.streaming``.

A network of a million weights, and a gibibyte of records that do not compress. The same run by
turns with all of them in memory and streamed by a worker that may use 256 MiB, each in a forked
process of its own, as a worker's runs are. Compared are the seconds of the training itself and of
the whole run, and the peak of resident memory with the allowance. The aims: at least 0.8 times the
speed, and at most 300 MB above the allowance.
"""

import os
import resource
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import Any, Final

import numpy as np
import torch

from app.domain.architectures import ArchitectureSpec
from app.domain.policy import Policy
from app.domain.states import FirstRelease, WeightsSource
from app.ledger import repository
from app.ledger.models import definitions
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset
from app.runtime.settings import Settings
from app.services import open_services
from benchmarks import harness
from demo.tables import record_table
from tests.support.arrays import array_schema, array_task
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
        _in_child(_set_up, given.records)
        idle = _in_child(_peak_bytes)
        rows = [
            {"arm": arm} | _in_child(_measured, _in_child(_defined, f"{arm}-{turn}"), allowed)
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
        "idle_bytes": idle,
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


def _in_child(work: Callable[..., Any], *of: object) -> Any:
    """Do ``work`` in a forked child, as a worker does."""
    with get_context("fork").Pool(1) as pool:
        return pool.apply(work, of)


def _peak_bytes() -> int:
    """Return the most resident memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def _set_up(records: int) -> None:
    services, generator = harness.new_services(), np.random.default_rng(0)
    with services.database.transaction() as session:
        define_dataset(session, name="data", schema=array_schema(FEATURES, subjects=False))
    for first in range(0, records, ROWS_A_FILE):
        features = generator.standard_normal((ROWS_A_FILE, FEATURES), dtype=np.float32)
        names = [f"record-{number}" for number in range(first, first + ROWS_A_FILE)]
        labels = features[:, :10].argmax(axis=1)
        file = record_table(record_ids=names, labels=labels, features=features)
        services.records.push("data", to_parquet(file))


def _defined(name: str) -> str:
    """Define a model that is trained and released as it is; return its run's id."""
    database = open_services(Settings()).database
    wanted = definitions.ModelDefinition(
        name=name,
        dataset="data",
        weights_source=WeightsSource.TRAIN,
        task=array_task(FEATURES, classes=10),
        architecture=ArchitectureSpec("mlp", {"hidden": list(HIDDEN)}),
        recipe=RECIPE,
        policy=Policy(mechanism="retraining", first_release=FirstRelease.AS_TRAINED),
    )
    model = definitions.define_model(database, wanted)
    with database.transaction() as session:
        run = repository.active_run(session, model.id)
        return run.id if run else ""


def _measured(run_id: str, allowed: int) -> dict[str, Any]:
    """Carry out a run."""
    os.environ[VARIABLE] = str(allowed)
    cpu_s = time.process_time()
    run_s, _ = harness.seconds_of(lambda: jobs.execute_run(run_id))
    cpu_s, peak_bytes = time.process_time() - cpu_s, _peak_bytes()
    with open_services(Settings()).database.transaction() as session:
        run = repository.run(session, run_id)
        harness.require(run.state == "published", f"published, not {run.state}")
        training_s = (run.phase_seconds or {})["training"]
    return {
        "training_s": training_s,
        "run_s": round(run_s, 2),
        "cpu_s": round(cpu_s, 2),
        "peak_bytes": peak_bytes,
    }


if __name__ == "__main__":
    options = {
        "--records": {"type": int, "default": 131_072},
        "--rounds": {"type": int, "default": 2},
    }
    harness.main("streaming", __doc__, run, options=options, table=table)
