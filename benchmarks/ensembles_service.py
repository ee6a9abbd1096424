"""From POST to certificate for a request that concerns four members, with one worker and with two.

Each worker computes in one thread. By turns with one worker and with two; each request names so
many people that all four members have one of them. Every certificate is checked offline, outside of
the time.
"""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from app.certificates.verification import verify
from app.client import ExpungeClient
from app.datasets.files import record_table, to_parquet
from app.processes.python import python_command
from benchmarks.data import CLASSES, Pictures
from demo.service import data_dir_in, running_service

MEMBERS: Final = 4
RECORDS: Final = 20_000
PERSONS: Final = 60
ROUNDS: Final = 3
_NAME: Final = "pictures"
_POLL_S: Final = 0.02
_STARTING_S: Final = 20.0
_TIMEOUT_S: Final = 900.0
_MODEL: Final = {
    "name": _NAME,
    "dataset": _NAME,
    "architecture": {
        "name": "ensemble",
        "members": MEMBERS,
        "of": {"name": "mlp", "options": {"hidden": [256]}},
    },
    "recipe": {"epochs": 100, "batch_size": 64, "learning_rate": 0.05, "held_out_fraction": 0.02},
    "policy": {"mechanism": "sharded_retraining"},
}


def measure(pictures: Pictures) -> dict[str, Any]:
    """Return the seconds of each request, and the medians' ratio.

    Raises:
        RuntimeError: a run failed, or a request concerned other members than all four.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    seconds: dict[str, list[float]] = {"one": [], "two": []}
    phases: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="expunge-ensembles-") as directory:
        folder = Path(directory)
        with running_service(folder) as client:
            _set_up(client, pictures)
            left = iter(range(RECORDS))
            for _ in range(ROUNDS):
                for arm, second in (("one", nullcontext()), ("two", _second_worker(folder))):
                    with second:
                        ids = [f"record-{next(left)}" for _ in range(PERSONS)]
                        taken, phase = _answered(client, ids, folder)
                        seconds[arm].append(taken)
                        phases.append(phase)
    medians = {arm: statistics.median(each) for arm, each in seconds.items()}
    return {
        "records": RECORDS,
        "members": MEMBERS,
        "persons": PERSONS,
        "seconds": seconds,
        "phase_seconds": phases,
        "two_workers_to_one": medians["two"] / medians["one"],
    }


@contextmanager
def _second_worker(folder: Path) -> Iterator[None]:
    environment = {**os.environ, "EXPUNGE_DATA_DIR": str(data_dir_in(folder))}
    with (folder / "second.log").open("ab") as output:
        worker = subprocess.Popen(
            [*python_command("app.cli", "worker"), "--no-dispatcher"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        time.sleep(_STARTING_S)
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()


def _set_up(client: ExpungeClient, pictures: Pictures) -> None:
    inputs = pictures.train.inputs[:RECORDS].flatten(1).numpy()
    targets = pictures.train.target[:RECORDS].numpy()
    count = len(inputs)
    client.define_dataset(
        _NAME,
        features={"shape": [inputs.shape[1]], "dtype": "uint8", "scale": 1 / 255},
        classes=CLASSES,
    )
    for start in range(0, count, 5000):
        rows = slice(start, min(start + 5000, count))
        table = record_table(
            record_ids=[f"record-{number}" for number in range(rows.start, rows.stop)],
            labels=targets[rows],
            features=inputs[rows],
        )
        client.push_records(_NAME, to_parquet(table))
    client.define_model(_MODEL)
    model = client.wait_for_model(_NAME, timeout_s=_TIMEOUT_S)
    _require(model["latest_run"]["state"] == "published", "the ensemble is released")


def _answered(
    client: ExpungeClient, record_ids: list[str], folder: Path
) -> tuple[float, dict[str, float]]:
    """Return the seconds until the certificate, and those of the run's phases."""
    started = time.perf_counter()
    request = client.forget(_NAME, record_ids=record_ids)
    while not (certificates := client.certificates_of(request["id"])):
        _require(time.perf_counter() - started < _TIMEOUT_S, "a certificate came")
        time.sleep(_POLL_S)
    seconds = time.perf_counter() - started
    ended = client.wait_for_request(request["id"], timeout_s=_TIMEOUT_S)
    run = client.run(ended["obligations"][0]["run"])
    trusted = client.trusted_keys()
    weights = client.download(_NAME, folder, trusted=trusted).weights
    bundle = json.dumps(certificates[0]["bundle"]).encode()
    statement = verify(bundle=bundle, weights=weights, trusted=trusted)
    version = statement["model"]["version"]
    anew = [member for member in statement["members"] if member["trained_in"] == version]
    _require(len(anew) == MEMBERS, "the request concerns all members")
    return seconds, run["phase_seconds"]


def _require(condition: bool, statement: str) -> None:  # noqa: FBT001
    if not condition:
        raise RuntimeError(f"check failed: {statement}")
