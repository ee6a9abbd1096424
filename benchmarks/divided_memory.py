"""Peak memory of each process of a run, of one process and of several that divide it.

    python -m benchmarks.divided_memory --width 2048 --layers 40 --devices 1 3

A deep network learns from made-up records, is released and forgets, by ``gradient_clipping``, in
the worker's own entry over embedded servers in a temporary directory. Printed are, for each process
of each run, the highest resident size (VmHWM) and the highest proportional size that was seen (PSS,
twice a second), where what several processes share is divided among them.
"""

import argparse
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import psutil
from torch import nn

from app.access import api_keys
from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.policy import Policy
from app.domain.schema import FeatureSchema
from app.ledger import scheduling
from app.ledger.new_requests import NewForgetRequest
from app.registry import repository as registry
from app.registry.datasets.files import record_table
from app.runtime.settings import Settings
from app.services import open_services
from benchmarks import harness
from benchmarks.harness import in_child
from workers import jobs

FACTORY: Final = "benchmarks.divided_memory:deep"
_CLASSES: Final = 10
_INPUTS: Final = 64
_RECORDS: Final = 96
_INTERVAL_S: Final = 0.5
_MIB: Final = 1 << 20


def deep(*, input_shape: tuple[int, ...], classes: int, width: int, layers: int) -> nn.Module:
    """Return a multilayer perceptron whose layers add to what they read."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.linear = nn.Linear(width, width)

        def forward(self, seen):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            return seen + self.linear(self.norm(seen)).relu()

    inputs = int(np.prod(input_shape))
    blocks = [Layer() for _ in range(layers)]
    return nn.Sequential(nn.Linear(inputs, width), *blocks, nn.Linear(width, classes))


@dataclass
class Peak:
    """The highest figures of one process, in bytes."""

    resident: int = 0
    proportional: int = 0


class Watched:
    """Looks at all processes below one, as long as the block lasts."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peaks: dict[str, Peak] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            for process in psutil.Process(self._root).children(recursive=True):
                name = _role(process)
                if name is not None:
                    self._look(process.pid, self.peaks.setdefault(name, Peak()))

    def _look(self, pid: int, peak: Peak) -> None:
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
            memory = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            return
        peak.resident = max(peak.resident, _kib(status, "VmHWM:"))
        peak.proportional = max(peak.proportional, _kib(memory, "Pss:"))


def _kib(text: str, field: str) -> int:
    for line in text.splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _role(process: psutil.Process) -> str | None:
    """Return which process of a run it is; None for servers and helpers."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return None
    if any("spawn_main" in part for part in command):
        return f"process {process.pid}"  # in the order of their ranks
    return "worker" if command[1:3] == ["-m", "benchmarks.divided_memory"] else None


def main() -> None:
    """Measure both runs with each number of devices."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="adamw")
    asked = parser.parse_args()
    weights = asked.layers * asked.width * (asked.width + 3) + asked.width * (_INPUTS + 1)
    weights += _CLASSES * (asked.width + 1)
    print(f"{weights / 1e6:.1f} million weights, {weights * 4 / _MIB:.0f} MiB")
    os.environ["EXPUNGE_ALLOWED_FACTORIES"] = f'["{FACTORY}"]'
    for devices in asked.devices:
        os.environ["EXPUNGE_DEVICES"] = str(devices)
        with harness.embedded():
            _measure(asked, devices)


def _measure(asked: argparse.Namespace, devices: int) -> None:
    for kind, start in (("train", lambda: _set_up(asked)), ("unlearn", _forget)):
        run_id, _ = in_child(start)
        began = time.monotonic()
        with Watched(os.getpid()) as watched:
            in_child(lambda run_id=run_id: jobs.execute_run(run_id))
        took = time.monotonic() - began
        in_child(lambda run_id=run_id: harness.phases_of(run_id))
        print(f"devices {devices}, {kind}, {took:.0f} s", flush=True)
        for name, peak in sorted(watched.peaks.items()):
            resident, proportional = peak.resident / _MIB, peak.proportional / _MIB
            print(f"  {name}: resident {resident:.0f} MiB, proportional {proportional:.0f} MiB")


def _set_up(asked: argparse.Namespace) -> str:
    """Define the model; return its run."""
    generator = np.random.default_rng(0)
    table = record_table(
        record_ids=[f"record-{number}" for number in range(_RECORDS)],
        subject_ids=[f"subject-{number // 2}" for number in range(_RECORDS)],
        labels=generator.integers(0, _CLASSES, _RECORDS),
        features=generator.integers(0, 256, size=(_RECORDS, _INPUTS), dtype=np.uint8),
    )
    features = FeatureSchema(shape=(_INPUTS,), dtype="uint8", scale=1 / 255, classes=_CLASSES)
    harness.fill(harness.new_services(), "data", features, [table])
    options = {"width": asked.width, "layers": asked.layers}
    return harness.defined_run(
        "model",
        architecture=ArchitectureSpec("custom", options, factory=FACTORY),
        recipe={
            "epochs": 1,
            "batch_size": 24,
            "optimizer": asked.optimizer,
            "learning_rate": 1e-4,
        },
        policy=Policy(mechanism="gradient_clipping", parameters={"steps": 3}, budget_epochs=2.0),
    )


def _forget() -> str:
    """Ask for a person to be forgotten; return the model's run."""
    services = open_services(Settings())
    with services.database.transaction() as session:
        key, _ = api_keys.create_key(session, name="memory", scopes=[])
        asked = NewForgetRequest("data", subject_ids=["subject-3"])
        services.acceptance.submit(session, asked, api_key_id=key.id)
    with services.database.transaction() as session:
        model_id = registry.model_named(session, "model").id
    scheduling.schedule_model(services.database, model_id)
    return harness.active_run(services, "model")


if __name__ == "__main__":
    main()
