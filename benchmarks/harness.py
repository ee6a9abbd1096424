"""What benchmarks share: options, JSON, tables and pictures, and a service to measure."""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from app.client import ExpungeClient
from app.domain.schema import FeatureSchema
from app.domain.states import WeightsSource
from app.evidence.certificates.verification import verify
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

RESULTS: Final = Path(__file__).parent / "results"
STYLE: Final = {"font.size": 11, "axes.grid": True, "grid.alpha": 0.3, "figure.dpi": 130}
TIMEOUT_S: Final = 900.0
_HELD_S: Final = 60


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows where results go; ``about`` is the module's docstring."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--results", type=Path, help="JSON file; a picture lies beside it")
    return parser


def parsed(parser: argparse.ArgumentParser, name: str) -> argparse.Namespace:
    """Return the options; results go to benchmarks/results unless a run is a quick one."""
    options = parser.parse_args()
    if options.results is None and not getattr(options, "quick", False):
        options.results = RESULTS / f"{name}.json"
    return options


def write(document: dict[str, Any], path: Path | None) -> None:
    """Write a document where there is a path for it."""
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


def show(document: dict[str, Any], path: Path | None) -> None:
    """Print a document, and write it."""
    print(json.dumps(document, indent=1))
    write(document, path)


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown; columns of the head are divided by ``|``."""
    lines = [f"| {head} |", f"|{' --- |' * (head.count('|') + 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


@contextmanager
def picture(
    path: Path, size: tuple[float, float], rows: int = 1, columns: int = 1, **how: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes, [rows][columns]; both are saved and closed afterwards."""
    import matplotlib as mpl  # noqa: PLC0415 - only where something is drawn

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - the backend is chosen first

    bottom = how.pop("bottom", 0.0)
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **how)
        yield figure, axes
        figure.tight_layout(rect=(0, bottom, 1, 0.98 if bottom else 1))
        figure.savefig(path)
        plt.close(figure)


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long a call took, and what it returned."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def require(condition: object, statement: str) -> None:
    """Stop a measurement that means nothing.

    Raises:
        RuntimeError: the statement is not true.
    """
    if not condition:
        raise RuntimeError(f"check failed: {statement}")


@contextmanager
def embedded(**environment: str) -> Iterator[Path]:
    """Run the embedded servers in a temporary directory; ``Settings()`` means them. Yields that."""
    with tempfile.TemporaryDirectory(prefix="expunge-benchmark-") as directory:
        os.environ.update(EXPUNGE_DATA_DIR=directory, **environment)
        servers = EmbeddedServers(Path(directory))
        servers.start()
        try:
            yield Path(directory)
        finally:
            servers.stop()


def new_services() -> Services:
    """Return the services of a new, empty ledger."""
    settings = Settings()
    create_keys(settings)
    schema.upgrade(migration_url(settings), service_url=database_url(settings))
    return open_services(settings)


def fill(services: Services, name: str, features: FeatureSchema, files: Iterable[Any]) -> None:
    """Define a dataset and push record tables into it."""
    with services.database.transaction() as session:
        define_dataset(session, name=name, schema=features)
    for file in files:
        services.records.push(name, to_parquet(file))


def defined_run(name: str, **definition: Any) -> str:
    """Define a model that is trained on the dataset ``data``; return its first run's id."""
    services = open_services(Settings())
    wanted = definitions.ModelDefinition(
        name=name, dataset="data", weights_source=WeightsSource.TRAIN, **definition
    )
    definitions.define_model(services.database, wanted)
    return active_run(services, name)


def active_run(services: Services, name: str) -> str:
    """Return the id of the model's run that is to be carried out."""
    with services.database.transaction() as session:
        run = repository.active_run(session, registry.model_named(session, name).id)
        require(run, "the model has a run")
        return str(run.id) if run else ""


def phases_of(run_id: str) -> dict[str, float]:
    """Return the seconds of a published run's phases.

    Raises:
        RuntimeError: the run was not published.
    """
    with open_services(Settings()).database.transaction() as session:
        run = repository.run(session, run_id)
        require(run.state == "published", f"published, not {run.state}: {run.failure_reason}")
        return dict(run.phase_seconds or {})


def in_child(work: Callable[[], Any]) -> tuple[Any, float]:
    """Do ``work`` in a forked child, as a worker does.

    Returns:
        What it returned, by way of JSON, and the child's peak of resident bytes.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        except Exception:  # noqa: BLE001 - a forked child must not return
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        content = told.read()
    _, status, usage = os.wait4(child, 0)
    require(status == 0, "a child ends well")
    # Linux counts kibibytes, macOS bytes.
    return json.loads(content), float(usage.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def push(
    client: ExpungeClient, dataset: str, features: Any, labels: Any, *, rows: int = 2500
) -> None:
    """Push records by the names record-0, record-1, …, so many rows a file."""
    for start in range(0, len(labels), rows):
        some = range(start, min(start + rows, len(labels)))
        names = [f"record-{number}" for number in some]
        file = record_table(
            record_ids=names,
            labels=labels[some.start : some.stop],
            features=features[some.start : some.stop],
        )
        client.push_records(dataset, to_parquet(file))


def released(client: ExpungeClient, definition: dict[str, Any]) -> float:
    """Define a model and wait for its release; return the seconds of its run."""
    client.define_model(definition)
    model = client.wait_for_model(definition["name"], timeout_s=TIMEOUT_S)
    require(model["latest_run"]["state"] == "published", "the model is released")
    return float(sum(model["latest_run"]["phase_seconds"].values()))


def certified(
    client: ExpungeClient, model: str, dataset: str, record_ids: list[str], folder: Path
) -> tuple[float, dict[str, float], dict[str, Any]]:
    """Have records forgotten, and check the certificate offline, outside of the time.

    Returns:
        Seconds from POST to the certificate, those of the run's phases, and the statement.
    """
    started = time.perf_counter()
    request = client.forget(dataset, record_ids=record_ids)
    while request["state"] in ("accepted", "unlearning"):
        request = client.request(request["id"], wait_s=_HELD_S)
    seconds = time.perf_counter() - started
    certificates = client.certificates_of(request["id"])
    ended = client.wait_for_request(request["id"], timeout_s=TIMEOUT_S)
    require(ended["state"] == "completed", "the request is completed")
    run = client.run(ended["obligations"][0]["run"])
    trusted = client.trusted_keys()
    weights = client.download(model, folder, trusted=trusted).weights
    bundle = json.dumps(certificates[0]["bundle"]).encode()
    return seconds, run["phase_seconds"], verify(bundle=bundle, weights=weights, trusted=trusted)
