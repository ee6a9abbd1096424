"""From POST to certificate for a request that concerns four members, with one worker and with two.

Each worker computes in one thread. In each round a request with two workers is followed at once by
one with one worker, so that both find the machine alike; each request names so many people that all
members have one of them. Every certificate is checked offline, outside of the time. Beside them the
machine's own limit is measured: the same trainings without a service, by one process and by two at
once. Results go to benchmarks/results/ensembles_service.json; the machine should be quiet.

    python -m benchmarks.ensembles_service [--rounds N] [--results FILE] [--quick]
"""

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import torch

from app.client import ExpungeClient
from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.recipes.recipe import TrainingRecipe
from app.evidence.certificates.verification import verify
from app.operations.monitoring.queue_state import queue_state
from app.registry.datasets.files import record_table, to_parquet
from app.runtime.locations import redis_connection
from app.runtime.processes.python import python_command
from app.runtime.settings import Settings
from benchmarks.data import CLASSES, Pictures, load
from demo.service import data_dir_in, running_service
from workers.training.examples import classified
from workers.training.networks.architectures import build
from workers.training.networks.network import Network

RESULTS: Final = Path(__file__).parent / "results" / "ensembles_service.json"
MEMBERS: Final = 4
_NAME: Final = "pictures"
_HELD_S: Final = 60
_TIMEOUT_S: Final = 900.0
_BATCH_SIZE: Final = 64
_LEARNING_RATE: Final = 0.05


@dataclass(frozen=True)
class Scale:
    """How much is run: the defaults are the benchmark, ``QUICK`` is a smoke test.

    Attributes:
        data: the pictures.
        records: of the ensemble.
        people: of each request, as many as concern all members.
        hidden: units of each member's hidden layer.
        epochs: of each training.
        rounds: pairs of requests.
    """

    data: str = "mnist"
    records: int = 20_000
    people: int = 60
    hidden: int = 256
    epochs: int = 180
    rounds: int = 3


QUICK: Final = Scale(data="digits", records=1_000, hidden=16, epochs=3, rounds=1)


def measure(pictures: Pictures, scale: Scale) -> Iterator[dict[str, Any]]:
    """Yield, after each round, the seconds of the requests, their ratios and the machine's limit.

    Raises:
        RuntimeError: a run failed, or a request concerned other members than all of them.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="expunge-ensembles-") as directory:
        folder = Path(directory)
        with running_service(folder) as client, _Trainings(pictures, scale) as trainings:
            _set_up(client, pictures, scale)
            for start in range(0, 2 * scale.rounds * scale.people, 2 * scale.people):
                ids = [f"record-{start + number}" for number in range(2 * scale.people)]
                with _second_worker(folder):
                    two, two_phases = _answered(client, ids[: scale.people], folder)
                one, one_phases = _answered(client, ids[scale.people :], folder)
                rounds.append(
                    {
                        "one_s": one,
                        "two_s": two,
                        "ratio": two / one,
                        "one_phases": one_phases,
                        "two_phases": two_phases,
                        "limit": trainings.ratio(),
                    }
                )
                yield {
                    "note": pictures.note,
                    "date": datetime.now(UTC).date().isoformat(),
                    **asdict(scale),
                    "members": MEMBERS,
                    "cores": os.cpu_count(),
                    "round": rounds,
                    "median_ratio": statistics.median(each["ratio"] for each in rounds),
                    "median_limit": statistics.median(each["limit"] for each in rounds),
                }


class _Trainings:
    """The members' trainings without a service, in two processes that wait for them."""

    def __init__(self, pictures: Pictures, scale: Scale) -> None:
        size = scale.records // MEMBERS
        inputs, target = pictures.train.inputs[:size], pictures.train.target[:size]
        self._order = (inputs.flatten(1).numpy(), target.numpy(), scale.hidden, scale.epochs)
        context = multiprocessing.get_context("spawn")
        self._processes = ProcessPoolExecutor(2, mp_context=context)

    def __enter__(self) -> Self:
        self._seconds(1, 1)  # both processes import what they need
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.shutdown()

    def ratio(self) -> float:
        """Return how long two processes take for two members each, as a part of one for all."""
        half = MEMBERS // 2
        return self._seconds(half, MEMBERS - half) / self._seconds(MEMBERS)

    def _seconds(self, *counts: int) -> float:
        started = time.perf_counter()
        running = [self._processes.submit(_train, count, *self._order) for count in counts]
        for each in running:
            each.result()
        return time.perf_counter() - started


def _train(count: int, inputs: Any, target: Any, hidden: int, epochs: int) -> None:  # noqa: ANN401
    """Train so many networks as a member is trained."""
    torch.set_num_threads(1)
    examples = classified(inputs, target, scale=1 / 255)
    recipe = TrainingRecipe(batch_size=_BATCH_SIZE, learning_rate=_LEARNING_RATE)
    for _ in range(count):
        network = Network(
            lambda: build(
                ArchitectureSpec("mlp", {"hidden": [hidden]}),
                input_shape=(inputs.shape[1],),
                classes=CLASSES,
                allowed_factories=(),
            ),
            device=torch.device("cpu"),
        )
        network.train(examples, recipe, epochs=epochs)


def _definition(scale: Scale) -> dict[str, Any]:
    return {
        "name": _NAME,
        "dataset": _NAME,
        "architecture": {
            "name": "ensemble",
            "members": MEMBERS,
            "of": {"name": "mlp", "options": {"hidden": [scale.hidden]}},
        },
        "recipe": {
            "epochs": scale.epochs,
            "batch_size": _BATCH_SIZE,
            "learning_rate": _LEARNING_RATE,
            "held_out_fraction": 0.02,
        },
        "policy": {"mechanism": "sharded_retraining"},
    }


@contextmanager
def _second_worker(folder: Path) -> Iterator[None]:
    """Have a second worker from when it waits for work until the block ends."""
    redis = redis_connection(Settings(data_dir=data_dir_in(folder)))
    environment = {**os.environ, "EXPUNGE_DATA_DIR": str(data_dir_in(folder))}
    with (folder / "second.log").open("ab") as output:
        worker = subprocess.Popen(
            [*python_command("app.cli", "worker"), "--no-dispatcher"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        while queue_state(redis).states["idle"] < 2:
            _require(worker.poll() is None, "the second worker starts")
            time.sleep(0.1)
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()


def _set_up(client: ExpungeClient, pictures: Pictures, scale: Scale) -> None:
    inputs = pictures.train.inputs[: scale.records].flatten(1).numpy()
    targets = pictures.train.target[: scale.records].numpy()
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
    client.define_model(_definition(scale))
    model = client.wait_for_model(_NAME, timeout_s=_TIMEOUT_S)
    _require(model["latest_run"]["state"] == "published", "the ensemble is released")


def _answered(
    client: ExpungeClient, record_ids: list[str], folder: Path
) -> tuple[float, dict[str, float]]:
    """Return the seconds until the certificate, and those of the run's phases."""
    started = time.perf_counter()
    request = client.forget(_NAME, record_ids=record_ids)
    while request["state"] in ("accepted", "unlearning"):
        request = client.request(request["id"], wait_s=_HELD_S)
    seconds = time.perf_counter() - started
    certificates = client.certificates_of(request["id"])
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


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="small digits, one round")
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale()
    if options.rounds is not None:
        scale = replace(scale, rounds=options.rounds)
    results = options.results or (None if options.quick else RESULTS)
    for document in measure(load(scale.data), scale):
        print(json.dumps(document["round"][-1]), flush=True)
        if results is not None:
            results.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
