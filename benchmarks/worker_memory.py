"""Peak memory of a worker's child, against the bound: data + 4 x weights + 700 MB.

    python benchmarks/worker_memory.py

Each case runs for real, over embedded servers in a temporary directory, in a process of its own
that has imported what a worker imports. Data counts as stored: features and labels.
"""

import itertools
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.policy import Policy
from app.domain.schema import FeatureSchema
from app.domain.states import WeightsSource
from app.ledger import repository
from app.ledger.models import definitions
from app.operations import schema
from app.registry import repository as registry
from app.registry.datasets.files import record_table, to_parquet
from app.registry.datasets.service import define_dataset
from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import database_url, migration_url
from app.runtime.settings import Settings
from app.services import Services, create_keys, open_services
from workers import jobs

_MB = 1e6
_OVERHEAD_BYTES = 700e6
_LABEL_BYTES = 8
_BYTES_PER_WEIGHT = 4


@dataclass(frozen=True)
class Case:
    """One dataset and one network."""

    name: str
    shape: tuple[int, ...]
    hidden: list[int]
    records: int
    load: Callable[[], tuple[np.ndarray, np.ndarray]]

    @property
    def data_bytes(self) -> int:
        """Features, one byte each, and labels."""
        return self.records * (int(np.prod(self.shape)) + _LABEL_BYTES)

    @property
    def weight_bytes(self) -> int:
        """Weights and biases of the multilayer perceptron."""
        widths = [int(np.prod(self.shape)), *self.hidden, 10]
        pairs = itertools.pairwise(widths)
        return _BYTES_PER_WEIGHT * sum((inputs + 1) * outputs for inputs, outputs in pairs)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return images.reshape(-1, 8, 8).astype(np.uint8), labels


def _synthetic() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    features = generator.integers(0, 256, size=(50_000, 784), dtype=np.uint8)
    return features, generator.integers(0, 10, size=50_000)


CASES = (
    Case("digits", (8, 8), [64], 1797, _digits),
    Case("50,000 x 784 uint8", (784,), [1024, 256], 50_000, _synthetic),
)


def main() -> None:
    """Measure all cases; exit with 1 if one breaks the bound."""
    broken = False
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="expunge-memory-") as directory:
            os.environ["EXPUNGE_DATA_DIR"] = directory
            servers = EmbeddedServers(Path(directory))
            servers.start_postgres()
            try:
                peaks = _measure(case)
            finally:
                servers.stop()
        bound = case.data_bytes + 4 * case.weight_bytes + _OVERHEAD_BYTES
        print(
            f"{case.name}: data {case.data_bytes / _MB:.1f} MB, "
            f"weights {case.weight_bytes / _MB:.2f} MB, bound {bound / _MB:.0f} MB"
        )
        for kind, peak in peaks.items():
            print(f"  {kind}: peak {peak / _MB:.0f} MB, {peak / bound:.0%} of the bound")
            broken = broken or peak > bound
    sys.exit(int(broken))


def _measure(case: Case) -> dict[str, float]:
    """Return the peak resident bytes of a train and an unlearn run."""
    settings = Settings()
    in_child(lambda: _set_up(case, settings))
    peaks = {"idle": in_child(lambda: None)}
    for kind in ("train", "unlearn"):
        if kind == "unlearn":
            in_child(lambda: forget(settings, [f"subject-{number}" for number in range(5)]))
        run_id_file = settings.data_dir / "run-id"
        in_child(lambda file=run_id_file: file.write_text(run_id_of(settings)))
        run_id = run_id_file.read_text()
        peaks[kind] = in_child(lambda run=run_id: jobs.execute_run(run))
    return peaks


def _set_up(case: Case, settings: Settings) -> None:
    create_keys(settings)
    services = open_services(settings)
    schema.upgrade(migration_url(settings), service_url=database_url(settings))
    features, labels = case.load()
    table = record_table(
        record_ids=[f"record-{number}" for number in range(len(labels))],
        subject_ids=[f"subject-{number // 10}" for number in range(len(labels))],
        labels=labels,
        features=features,
    )
    with services.database.transaction() as session:
        define_dataset(
            session,
            name="data",
            schema=FeatureSchema(
                shape=case.shape, dtype="uint8", offset=0.0, scale=1 / 255, classes=10
            ),
        )
    services.records.push("data", to_parquet(table))
    definitions.define_model(
        services.database,
        definitions.ModelDefinition(
            name="model",
            dataset="data",
            architecture=ArchitectureSpec("mlp", {"hidden": case.hidden}),
            recipe={"epochs": 1, "batch_size": 128, "learning_rate": 0.05},
            policy=Policy(),
            weights_source=WeightsSource.TRAIN,
        ),
    )


def forget(settings: Settings, subject_ids: Sequence[str]) -> None:
    """Ask for some people to be forgotten, and schedule the model's run."""
    from app.access import api_keys  # noqa: PLC0415 - only this child needs them
    from app.ledger import scheduling  # noqa: PLC0415 - only this child needs them
    from app.ledger.new_requests import NewForgetRequest  # noqa: PLC0415 - likewise

    services = open_services(settings)
    asked = NewForgetRequest("data", subject_ids=list(subject_ids))
    with services.database.transaction() as session:
        key, _ = api_keys.create_key(session, name="memory", scopes=[])
        services.acceptance.submit(session, asked, api_key_id=key.id)
    with services.database.transaction() as session:
        model_id = registry.model_named(session, "model").id
    scheduling.schedule_model(services.database, model_id)


def run_id_of(settings: Settings) -> str:
    """Return the id of the model's run that is to be carried out."""
    services: Services = open_services(settings)
    with services.database.transaction() as session:
        run = repository.active_run(session, registry.model_named(session, "model").id)
        if run is None:
            raise RuntimeError("the model has no run")
        return run.id


def in_child(work: Callable[[], Any]) -> float:
    """Do ``work`` in a forked child, as a worker does; return its peak resident bytes."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except Exception:  # noqa: BLE001 - a forked child must not return
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        raise RuntimeError(f"a child failed with status {status}")
    return _bytes(usage)


def _bytes(usage: resource.struct_rusage) -> float:
    """Return ru_maxrss in bytes; Linux counts kibibytes, macOS bytes."""
    return float(usage.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
