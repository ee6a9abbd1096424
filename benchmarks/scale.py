"""What a request costs beside its arithmetic, by what is stored: ``python -m benchmarks.scale``.

A dataset of made-up records on a service with two workers, at several sizes. One model after the
other learns from it, and then three at once; one person asks to be forgotten, some times over.
Measured are the answer, the beginning of the first run, completion, and all but the arithmetic; of
each the quickest of the repeats, because other work on the machine only adds.
"""

import os
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from app.client import ExpungeClient
from app.registry.datasets.columns.parquet import to_parquet
from app.runtime.processes.starting import python_command
from benchmarks import harness
from demo.service import data_dir_in, running_service
from demo.tables import record_table
from tests.support.arrays import array_schema, array_task

ARITHMETIC: Final = ("training", "unlearning", "fine_tuning", "evaluating")
START_S, REST_S, GROWTH = 0.5, 2.0, 1.5
COMPLETED_S: Final = {"retrained": 3.0, "left_out": 3.0, "softmax": 1.0, "ridge": 1.0}
"""The aims, at all sizes: to the first run, all but arithmetic, its growth, and completion."""
_ROWS_A_PUSH: Final = 50_000
_LARGE: Final = 1_000_000
_READY_S: Final = 3600.0
_RECIPE: Final = {"epochs": 1, "batch_size": 512, "learning_rate": 0.05}
_MLP: Final = {"name": "mlp", "options": {"hidden": [128]}}
_ENSEMBLE: Final = {"name": "ensemble", "members": 16, "of": _MLP}
_RIDGE: Final = {"name": "ridge_head", "options": {"feature_range": 6.0}}
MODELS: Final[Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]]] = {
    "ridge": ("ridge head", _RIDGE, {"mechanism": "sufficient_statistics"}),
    "softmax": ("softmax head", {"name": "linear_head"}, {"mechanism": "exact_training"}),
    "left_out": ("ensemble of 16, member left out", _ENSEMBLE, {"forget": "leave_out"}),
    "retrained": ("ensemble of 16, member trained anew", _ENSEMBLE, {"forget": "retrain"}),
    "mlp": ("network trained anew", _MLP, {"mechanism": "retraining"}),
}
_NAMES: Final = {name: label for name, (label, *_) in MODELS.items()} | {
    "together": "softmax head, ensemble, network"
}
TOGETHER: Final = ("softmax", "retrained", "mlp")


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the sizes that are done."""
    os.environ["OMP_NUM_THREADS"] = "1"  # each worker has one of two cores
    cases = list[dict[str, Any]]()
    document = {"cores": os.cpu_count(), "cases": cases}
    for size in given.sizes:
        features = given.features or (30 if size > _LARGE else 100)
        with serving() as client:
            push(client, size, features)
            people = iter(np.random.default_rng(size).permutation(size // 2).tolist())
            for case in given.case or (*MODELS, "together"):
                names = TOGETHER if case == "together" else (case,)
                with trained(client, case, names, features):
                    found = [forgotten(client, people, names) for _ in range(given.repeats)]
                shape = {"records": size, "features": features, "case": case}
                cases.append(shape | {key: min(each[key] for each in found) for key in found[0]})
                yield document


@contextmanager
def serving() -> Iterator[ExpungeClient]:
    """Serve with two workers."""
    with tempfile.TemporaryDirectory(prefix="expunge-scale-") as folder:
        environment = os.environ | {"EXPUNGE_DATA_DIR": str(data_dir_in(Path(folder)))}
        second = partial(subprocess.Popen, env=environment, stderr=subprocess.DEVNULL)
        with running_service(Path(folder)) as client, ExitStack() as stack:
            worker = stack.enter_context(second(python_command("workers", "worker")))
            stack.callback(worker.terminate)
            yield client


def push(client: ExpungeClient, size: int, features: int) -> None:
    """Store the records of a dataset "data"."""
    client.define_dataset("data", **array_schema(features).to_json())
    for table in tables(size, features):
        client.push_records("data", to_parquet(table))


def tables(size: int, features: int) -> Iterator[pa.Table]:
    """Yield made-up records, two of each person."""
    draws = np.random.default_rng(0)
    direction = draws.normal(size=features).astype(np.float32)
    for first in range(0, size, _ROWS_A_PUSH):
        numbers = np.arange(first, min(size, first + _ROWS_A_PUSH))
        values = draws.standard_normal((len(numbers), features), dtype=np.float32)
        yield record_table(
            record_ids=np.char.add("record-", numbers.astype(str)),
            subject_ids=np.char.add("person-", (numbers // 2).astype(str)),
            labels=values @ direction + draws.normal(size=len(numbers)) > 0,
            features=values,
        )


@contextmanager
def trained(client: ExpungeClient, case: str, names: Sequence[str], width: int) -> Iterator[None]:
    """Have models that owe nothing to anybody until now, and that are archived afterwards."""
    for name in names:
        _, architecture, policy = MODELS[name]
        recipe = {"held_out_fraction": 0.01} | (_RECIPE if name != "ridge" else {})
        learns = {"task": array_task(width), "architecture": architecture, "recipe": recipe}
        learns |= {"policy": policy}
        client.define_model({"name": f"{case}-{name}", "dataset": "data"} | learns)
    for name in names:
        run = client.wait_for_model(f"{case}-{name}", timeout_s=_READY_S)["latest_run"]
        harness.require(run["state"] == "published", f"{name}: {run['failure_reason']}")
    yield
    for name in names:
        client.archive_model(f"{case}-{name}")


def forgotten(
    client: ExpungeClient, people: Iterator[int], names: Sequence[str]
) -> dict[str, float]:
    """Forget one person whom every model learned from; the seconds since POST."""
    while True:
        began, person = time.time(), f"person-{next(people)}"
        forget = partial(client.forget, "data", subject_ids=[person])
        answer_s, request = harness.seconds_of(forget)
        request = client.wait_for_request(request["id"], timeout_s=_READY_S)
        completed_s = time.time() - began
        harness.require(request["state"] == "completed", str(request["failure_reason"]))
        runs = [each["run"] for each in request["obligations"] if each["run"]]
        if len(runs) == len(names):
            break
    starts, slowest = list[float](), 0.0
    for run in map(client.run, runs):
        starts.append(datetime.fromisoformat(run["started_at"]).timestamp() - began)
        phases = run["phase_seconds"] or {}
        slowest = max(slowest, sum(phases.get(kind, 0.0) for kind in ARITHMETIC))
    measured = {"answer_s": answer_s, "start_s": min(starts), "rest_s": completed_s - slowest}
    return measured | {"completed_s": completed_s}


def table(document: dict[str, Any]) -> str:
    """Return the seconds of each size beside arithmetic, and from POST to completion."""
    cases = {(each["records"], each["case"]): each for each in document["cases"]}
    sizes = dict.fromkeys((each["records"], each["features"]) for each in document["cases"])
    head = "|".join((" models ", *(f" {size:,} × {features} " for size, features in sizes)))
    rows = [
        [label, *("{rest_s:.2f} / {completed_s:.2f}".format_map(cases[n, case]) for n, _ in sizes)]
        for case, label in _NAMES.items()
        if all((size, case) in cases for size, _ in sizes)
    ]
    return harness.table(head.strip(), rows)


def figure(document: dict[str, Any], path: Path) -> None:
    """Draw what is not arithmetic against the number of records."""
    with harness.picture(path, (8, 5)) as (_, ((axis,),)):
        for case, label in _NAMES.items():
            found = [each for each in document["cases"] if each["case"] == case]
            harness.plot(axis, found, "records", "rest_s", "o-", label=label)
        axis.set(xscale="log", yscale="log", xlabel="records", ylabel="seconds beside arithmetic")
        axis.legend(fontsize=9)


def met(document: dict[str, Any]) -> bool:
    """Say whether all aims are reached."""
    least = {each["case"]: each["rest_s"] for each in reversed(document["cases"])}
    return all(
        each["start_s"] <= START_S
        and each["rest_s"] <= min(REST_S, GROWTH * least[each["case"]])
        and each["completed_s"] <= COMPLETED_S.get(each["case"], _READY_S)
        for each in document["cases"]
    )


if __name__ == "__main__":
    options: dict[str, dict[str, Any]] = {
        "--sizes": {"type": int, "nargs": "+", "default": (50_000, 500_000, 5_000_000)},
        "--features": {"type": int, "help": "numbers of a record; 100, or 30 of the largest"},
        "--repeats": {"type": int, "default": 3},
        "--case": {"action": "append", "help": "this one alone"},
    }
    harness.main("scale", __doc__, run, options=options, table=table, figure=figure, met=met)
