"""Training on four times the memory that a worker may use: ``python -m benchmarks.streaming``.

A network of a million weights, and a gibibyte of records that do not compress. The same run by
turns with all of them in memory and streamed by a worker that may use 256 MiB, each in a forked
process of its own, as a worker's runs are. Compared are the seconds of the training itself and of
the whole run, and the peak of resident memory with the allowance. The aims: at least 0.8 times the
speed, and at most 300 MB above the allowance.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.policy import Policy
from app.domain.schema import FeatureSchema
from app.domain.states import FirstRelease, WeightsSource
from app.ledger import repository
from app.ledger.models import definitions
from app.operations import schema
from app.registry import repository as registry
from app.registry.datasets.files import record_table, to_parquet
from app.registry.datasets.service import define_dataset
from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import database_url, migration_url
from app.runtime.settings import Settings
from app.services import create_keys, open_services
from benchmarks.worker_memory import in_child
from workers import jobs
from workers.data.memory import VARIABLE

RECORDS: Final = 131_072
FEATURES: Final = 2048
ROWS_A_FILE: Final = 1024
HIDDEN: Final = (448, 160)
EPOCHS: Final = 2
ALLOWED: Final = 256 * 1024**2
PLENTY: Final = 8 * 1024**3
ROUNDS: Final = 2
RESULTS: Final = Path(__file__).parent / "results" / "streaming.json"


def main() -> None:
    """Measure, print and write."""
    with tempfile.TemporaryDirectory(prefix="expunge-streaming-") as directory:
        os.environ["EXPUNGE_DATA_DIR"] = directory
        servers = EmbeddedServers(Path(directory))
        servers.start_postgres()
        try:
            in_child(_set_up)
            idle = in_child(lambda: None)
            rows = [
                _measured(f"{arm}-{turn}", arm, allowed)
                for turn in range(ROUNDS)
                for arm, allowed in (("memory", PLENTY), ("streamed", ALLOWED))
            ]
        finally:
            servers.stop()
    document = {
        "records": RECORDS,
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
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


def _speed(rows: list[dict[str, Any]], what: str) -> float:
    """Return the speed of streaming as a share of the speed in memory, of the quickest of each."""
    best = {arm: min(r[what] for r in rows if r["arm"] == arm) for arm in ("memory", "streamed")}
    return round(best["memory"] / best["streamed"], 3)


def _set_up() -> None:
    settings = Settings()
    create_keys(settings)
    services = open_services(settings)
    schema.upgrade(migration_url(settings), service_url=database_url(settings))
    shape = FeatureSchema(shape=(FEATURES,), dtype="float32", offset=0.0, scale=1.0, classes=10)
    with services.database.transaction() as session:
        define_dataset(session, name="data", schema=shape)
    generator = np.random.default_rng(0)
    for first in range(0, RECORDS, ROWS_A_FILE):
        features = generator.standard_normal((ROWS_A_FILE, FEATURES), dtype=np.float32)
        table = record_table(
            record_ids=[f"record-{number}" for number in range(first, first + ROWS_A_FILE)],
            labels=features[:, :10].argmax(axis=1),
            features=features,
        )
        services.records.push("data", to_parquet(table))


def _measured(name: str, arm: str, allowed: int) -> dict[str, Any]:
    os.environ[VARIABLE] = str(allowed)
    run_id = Settings().data_dir / "run-id"
    in_child(lambda: run_id.write_text(_define(name)))
    before, started = os.times(), time.perf_counter()
    peak = in_child(lambda: jobs.execute_run(run_id.read_text()))
    run_s, after = time.perf_counter() - started, os.times()
    phases = Settings().data_dir / "phases"
    in_child(lambda: phases.write_text(json.dumps(_phases(run_id.read_text()))))
    return {
        "arm": arm,
        "training_s": json.loads(phases.read_text())["training"],
        "run_s": round(run_s, 2),
        "cpu_s": round(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system,
            2,
        ),
        "peak_bytes": int(peak),
    }


def _children_s(times: os.times_result) -> float:
    return times.children_user + times.children_system


def _define(name: str) -> str:
    """Define a model that is trained and released as it is; return its run."""
    services = open_services(Settings())
    definitions.define_model(
        services.database,
        definitions.ModelDefinition(
            name=name,
            dataset="data",
            architecture=ArchitectureSpec("mlp", {"hidden": list(HIDDEN)}),
            recipe={
                "epochs": EPOCHS,
                "batch_size": 128,
                "learning_rate": 0.05,
                "held_out_fraction": 0.01,
            },
            policy=Policy(mechanism="retraining", first_release=FirstRelease.AS_TRAINED),
            weights_source=WeightsSource.TRAIN,
        ),
    )
    with services.database.transaction() as session:
        run = repository.active_run(session, registry.model_named(session, name).id)
        if run is None:
            raise RuntimeError("the model has no run")
        return run.id


def _phases(run_id: str) -> dict[str, float]:
    services = open_services(Settings())
    with services.database.transaction() as session:
        run = repository.run(session, run_id)
        if run.state != "published":
            raise RuntimeError(f"the run is {run.state}: {run.failure_reason}")
        return dict(run.phase_seconds or {})


if __name__ == "__main__":
    main()
