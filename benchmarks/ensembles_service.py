"""From POST to certificate for a request that concerns four members, with one worker and with two.

Each worker computes in one thread. In each round a request with two workers is followed at once by
one with one worker, so that both find the machine alike; each request names so many people that all
members have one of them. Every certificate is checked offline, outside of the time. Beside them the
machine's own limit is measured: the same trainings without a service, by one process and by two at
once. Results go to benchmarks/results/ensembles_service.json; the machine should be quiet.

    python -m benchmarks.ensembles_service [--rounds N] [--results FILE] [--quick]
"""

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
from app.operations.monitoring.queue_state import queue_state
from app.runtime.locations import redis_connection
from app.runtime.processes.python import python_command
from app.runtime.settings import Settings
from benchmarks import harness
from benchmarks.data import CLASSES, Pictures, load
from demo.service import data_dir_in, running_service
from workers.training.examples import classified
from workers.training.networks.architectures import build
from workers.training.networks.network import Network

MEMBERS: Final = 4
_NAME: Final = "pictures"
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


def _train(count: int, inputs: Any, target: Any, hidden: int, epochs: int) -> None:
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
            harness.require(worker.poll() is None, "the second worker starts")
            time.sleep(0.1)
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()


def _set_up(client: ExpungeClient, pictures: Pictures, scale: Scale) -> None:
    inputs = pictures.train.inputs[: scale.records].flatten(1).numpy()
    targets = pictures.train.target[: scale.records].numpy()
    features = {"shape": [inputs.shape[1]], "dtype": "uint8", "scale": 1 / 255}
    client.define_dataset(_NAME, features=features, classes=CLASSES)
    harness.push(client, _NAME, inputs, targets, rows=5000)
    harness.released(client, _definition(scale))


def _answered(
    client: ExpungeClient, record_ids: list[str], folder: Path
) -> tuple[float, dict[str, float]]:
    """Return the seconds until the certificate, and those of the run's phases."""
    seconds, phases, statement = harness.certified(client, _NAME, _NAME, record_ids, folder)
    version = statement["model"]["version"]
    anew = [member for member in statement["members"] if member["trained_in"] == version]
    harness.require(len(anew) == MEMBERS, "the request concerns all members")
    return seconds, phases


def main() -> None:
    """Measure, print and write."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="small digits, one round")
    options = harness.parsed(parser, "ensembles_service")
    scale = QUICK if options.quick else Scale()
    if options.rounds is not None:
        scale = replace(scale, rounds=options.rounds)
    for document in measure(load(scale.data), scale):
        print(json.dumps(document["round"][-1]), flush=True)
        harness.write(document, options.results)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
