"""What benchmarks share: the command, JSON, tables and pictures, and a service to measure."""

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, TypeVar

import numpy as np
import torch

from app.domain.schema import TableSchema
from app.domain.states import WeightsSource
from app.ledger import repository
from app.ledger.models import definitions
from app.operations import schema
from app.registry import repository as registry
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.service import define_dataset
from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import database_url, migration_url
from app.runtime.settings import Settings
from app.services import Services, create_keys, open_services

RESULTS: Final = Path(__file__).parent / "results"
DOCS: Final = Path(__file__).parents[1] / "docs"
PAGES: Final = tuple(DOCS / f"{page}.md" for page in ("results", "research", "speed"))
STYLE: Final = {"font.size": 11, "axes.grid": True, "grid.alpha": 0.3, "figure.dpi": 130}

Document = dict[str, Any]
T = TypeVar("T")


def main(
    name: str,
    about: str | None,
    run: Callable[[argparse.Namespace], Iterable[Document]],
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    table: Callable[[Document], str] | None = None,
    figure: Callable[[Document, Path], object] | None = None,
    met: Callable[[Document], bool] = lambda _: True,
    arguments: Sequence[str] | None = None,
) -> None:
    """Run a benchmark from the command line; exit with 1 where it misses its aims.

    ``run`` yields the document of results/NAME.json, again whenever there is more of it; ``table``
    shows it, also on the page with its marks, and ``figure`` draws it beside the JSON.
    ``options`` are as ``add_argument`` takes them; ``--quick`` and ``--cuda`` write only to
    ``--results``, and ``--redraw`` measures nothing: it shows and draws the JSON that is there.
    """
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--results", type=Path, help="JSON file; a picture lies beside it")
    parser.add_argument("--redraw", action="store_true", help="show and draw what is in the JSON")
    for option, how in (options or {}).items():
        parser.add_argument(option, **how)
    given = parser.parse_args(arguments)
    apart = getattr(given, "quick", False) or getattr(given, "cuda", False)
    usual = given.results is None and not apart
    if usual:
        given.results = RESULTS / f"{name}.json"
    document: Document = {}
    for document in [json.loads(given.results.read_text())] if given.redraw else run(given):
        if given.results is not None:
            given.results.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document) if table else json.dumps(document, indent=1))
    if figure and given.results is not None:
        figure(document, given.results.with_suffix(".png"))
    if table and usual:
        put_on_page(name, table(document))
    if not met(document):
        sys.exit(1)


def earlier(given: argparse.Namespace) -> Document:
    """Return what is in the results already; nothing of it with ``--quick``."""
    path = given.results
    known = path is not None and path.exists() and not getattr(given, "quick", False)
    return dict(json.loads(path.read_text())) if known else {}


def marks(name: str) -> tuple[str, str]:
    """Return what stands around a benchmark's table on a page of results."""
    return (
        f"<!-- figures of {name}.json: begin -->\n\n",
        f"\n\n<!-- figures of {name}.json: end -->",
    )


def put_on_page(name: str, text: str, pages: Sequence[Path] = PAGES) -> None:
    """Replace the benchmark's table on the page of results that has it, if one does."""
    begin, end = marks(name)
    for page in pages:
        before, found, rest = page.read_text().partition(begin.strip())
        _, ended, after = rest.partition(end.strip())
        require(not found or ended, f"{page.name} has both marks of {name}")
        if found:
            page.write_text(before + begin + text + end + after)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error; None for one value."""
    several = len(values) > 1
    return fmean(values), stdev(values) / math.sqrt(len(values)) if several else None


def machine(device: torch.device) -> dict[str, str]:
    """Return what a reader must know of where it ran."""
    cuda = device.type == "cuda"
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s)"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else cpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown; columns of the head are divided by ``|``."""
    lines = [f"| {head} |", f"|{' --- |' * (head.count('|') + 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


@contextmanager
def picture(
    path: Path, size: tuple[float, float], rows: int = 1, columns: int = 1, bottom: float = 0.0
) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes, [rows][columns]; both are saved and closed afterwards."""
    import matplotlib as mpl  # noqa: PLC0415 - only where something is drawn

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - the backend is chosen first

    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
        yield figure, axes
        figure.tight_layout(rect=(0, bottom, 1, 0.98 if bottom else 1))
        figure.savefig(path)
        plt.close(figure)


def plot(
    axis: Any,
    rows: Sequence[Mapping[str, Any]],
    x: str,
    y: str,
    style: str,
    *,
    error: str | None = None,
    scale: float = 1.0,
    **how: Any,
) -> None:
    """Draw one key of the rows against another, ``scale`` times as high, with bars of errors."""
    bars = None if error is None else [scale * (row[error] or 0.0) for row in rows]
    heights = [scale * row[y] for row in rows]
    axis.errorbar([row[x] for row in rows], heights, yerr=bars, fmt=style, capsize=3, **how)


def seconds_of(call: Callable[[], T]) -> tuple[float, T]:
    """Return how long a call took, and what it returned."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def require(condition: object, statement: str) -> None:
    """Stop a measurement that means nothing."""
    if not condition:
        raise RuntimeError(f"check failed: {statement}")


@contextmanager
def embedded() -> Iterator[Path]:
    """Run the embedded servers in a temporary directory; ``Settings()`` means them. Yields that."""
    with tempfile.TemporaryDirectory(prefix="expunge-benchmark-") as directory:
        os.environ["EXPUNGE_DATA_DIR"] = directory
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


def fill(services: Services, name: str, schema: TableSchema, files: Iterable[Any]) -> None:
    """Define a dataset and push record tables into it."""
    with services.database.transaction() as session:
        define_dataset(session, name=name, schema=schema)
    for file in files:
        services.records.push(name, to_parquet(file))


def defined_run(name: str, **definition: Any) -> str:
    """Define a model that is trained on the dataset ``data``; return its first run's id."""
    services = open_services(Settings())
    wanted = definitions.ModelDefinition(
        name=name, dataset="data", weights_source=WeightsSource.TRAIN, **definition
    )
    definitions.define_model(services.database, wanted)
    with services.database.transaction() as session:
        run = repository.active_run(session, registry.model_named(session, name).id)
        require(run, "the model has a run")
        return str(run.id) if run else ""


def phases_of(run_id: str) -> dict[str, float]:
    """Return the seconds of a published run's phases."""
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
