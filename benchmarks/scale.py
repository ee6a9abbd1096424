"""What a request costs beside its arithmetic, by what is stored: ``python -m benchmarks.scale``.

A dataset of made-up records on a service with two workers, at several sizes. One model after the
other learns from it, and then three at once; one person asks to be forgotten, some times over.
Measured are the answer, the beginning of each run, its phases, and completion; of each the quickest
of the repeats, because other work on the machine only adds. ``--before`` shows earlier results
beside these.
"""

import json
import os
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.client import ExpungeClient
from app.registry.datasets.files import to_parquet
from app.runtime.processes.starting import python_command
from benchmarks import harness
from demo.service import data_dir_in, running_service
from demo.tables import record_table

SIZES: Final = (50_000, 500_000)
ARITHMETIC: Final = ("training", "unlearning", "fine_tuning", "evaluating")
START_S, REST_S, GROWTH = 0.5, 2.0, 1.5
COMPLETED_S: Final = {"retrained": 3.0, "left_out": 3.0, "softmax": 1.0, "ridge": 1.0}
"""The aims, at all sizes: to the first run, all but arithmetic, its growth, and completion."""
_ROWS_A_PUSH: Final = 50_000
_CLASSES: Final = 2
_READY_S: Final = 3600.0
_RECIPE: Final = {"epochs": 1, "batch_size": 512, "learning_rate": 0.05, "held_out_fraction": 0.01}
_MLP: Final = {"name": "mlp", "options": {"hidden": [128]}}
_ENSEMBLE: Final = {"name": "ensemble", "members": 16, "of": _MLP}
MODELS: Final[Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "ridge": (
        {"name": "ridge_head", "options": {"feature_range": 6.0}},
        {"mechanism": "sufficient_statistics"},
    ),
    "softmax": ({"name": "linear_head"}, {"mechanism": "exact_training"}),
    "left_out": (_ENSEMBLE, {"mechanism": "sharded_retraining"}),
    "retrained": (_ENSEMBLE, {"mechanism": "sharded_retraining", "forget": "retrain"}),
    "mlp": (_MLP, {"mechanism": "retraining"}),
}
_NAMES: Final = {
    "ridge": "ridge head",
    "softmax": "softmax head",
    "left_out": "ensemble of 16, member left out",
    "retrained": "ensemble of 16, member trained anew",
    "mlp": "network trained anew",
    "together": "three of these",
}
TOGETHER: Final = ("softmax", "retrained", "mlp")


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the sizes that are done."""
    os.environ["OMP_NUM_THREADS"] = "1"  # each worker has one of two cores
    document: dict[str, Any] = {"cores": os.cpu_count(), "features": given.features, "sizes": []}
    if given.before is not None:
        document["before"] = json.loads(given.before.read_text())["sizes"]
    for size in given.sizes:
        with _serving() as client:
            cases = list[dict[str, Any]]()
            document["sizes"].append({"records": size, "cases": cases})
            document["sizes"][-1]["push_s"] = _push(client, size, given.features)
            people = iter(np.random.default_rng(size).permutation(size // 2).tolist())
            for case in given.case or (*MODELS, "together"):
                names = TOGETHER if case == "together" else (case,)
                with _trained(client, case, names, given.features):
                    found = [_forgotten(client, people, names) for _ in range(given.repeats)]
                cases.append({"case": case, **_least(found)})
                print(size, cases[-1], flush=True)
                yield document


@contextmanager
def _serving() -> Iterator[ExpungeClient]:
    with tempfile.TemporaryDirectory(prefix="expunge-scale-") as folder:
        environment = os.environ | {"EXPUNGE_DATA_DIR": str(data_dir_in(Path(folder)))}
        with running_service(Path(folder)) as client:
            second = subprocess.Popen(
                python_command("workers", "worker"), env=environment, stderr=subprocess.DEVNULL
            )
            try:
                yield client
            finally:
                second.terminate()
                second.wait()


def _push(client: ExpungeClient, size: int, features: int) -> float:
    columns = {"features": f"list<float32, {features}>", "label": "int8"}
    client.define_dataset("data", columns, record_id="record_id", subject_id="subject_id")
    draws, seconds = np.random.default_rng(0), 0.0
    direction = draws.normal(size=features).astype(np.float32)
    for first in range(0, size, _ROWS_A_PUSH):
        numbers = np.arange(first, min(size, first + _ROWS_A_PUSH))
        values = draws.standard_normal((len(numbers), features), dtype=np.float32)
        table = record_table(
            record_ids=np.char.add("record-", numbers.astype(str)),
            subject_ids=np.char.add("person-", (numbers // 2).astype(str)),
            labels=values @ direction + draws.normal(size=len(numbers)) > 0,
            features=values,
        )
        content = to_parquet(table)
        seconds += harness.seconds_of(partial(client.push_records, "data", content))[0]
    return seconds


@contextmanager
def _trained(
    client: ExpungeClient, case: str, names: tuple[str, ...], features: int
) -> Iterator[None]:
    """Have models that owe nothing to anybody until now, and that are archived afterwards."""
    for name in names:
        architecture, policy = MODELS[name]
        client.define_model(
            {
                "name": f"{case}-{name}",
                "dataset": "data",
                "task": {
                    "name": "classification",
                    "inputs": [{"name": "features", "kind": "array", "shape": [features]}],
                    "target": {"column": "label", "classes": [*range(_CLASSES)]},
                },
                "architecture": architecture,
                "recipe": _RECIPE if name != "ridge" else {"held_out_fraction": 0.01},
                "policy": policy,
            }
        )
    for name in names:
        model = client.wait_for_model(f"{case}-{name}", timeout_s=_READY_S)
        run = model["latest_run"]
        harness.require(run["state"] == "published", f"{name}: {run['failure_reason']}")
    yield
    for name in names:
        client.archive_model(f"{case}-{name}")


def _forgotten(client: ExpungeClient, people: Iterator[int], names: tuple[str, ...]) -> Any:
    """Forget one person whom every model learned from; the seconds since POST."""
    while True:
        began, person = time.time(), f"person-{next(people)}"
        answer_s, request = harness.seconds_of(
            lambda: client.forget("data", subject_ids=[person])  # noqa: B023 - called at once
        )
        request = client.wait_for_request(request["id"], timeout_s=_READY_S)
        completed_s = time.time() - began
        harness.require(request["state"] == "completed", str(request["failure_reason"]))
        runs = [each["run"] for each in request["obligations"] if each["run"]]
        if len(runs) == len(names):
            break
    found = [client.run(each) for each in runs]
    phases = {each["model"].partition("-")[2]: _phases(each) for each in found}
    starts = [datetime.fromisoformat(each["started_at"]).timestamp() - began for each in found]
    slowest = max(sum(each[kind] for kind in ARITHMETIC) for each in phases.values())
    return {
        "answer_s": answer_s,
        "start_s": min(starts),
        "last_start_s": max(starts),
        "runs": phases,
        "rest_s": completed_s - slowest,
        "completed_s": completed_s,
    }


def _phases(run: Mapping[str, Any]) -> dict[str, float]:
    ended, began = (datetime.fromisoformat(run[f"{key}_at"]) for key in ("finished", "started"))
    phases = run["phase_seconds"] or {}
    return {
        "run": (ended - began).total_seconds(),
        **{kind: phases.get(kind, 0.0) for kind in ("loading", *ARITHMETIC, "publishing")},
    }


def _least(found: Sequence[Any]) -> Any:
    if isinstance(found[0], Mapping):
        return {key: _least([each[key] for each in found]) for key in found[0]}
    return min(found)


def table(document: dict[str, Any]) -> str:
    """Return seconds by size and case; those of before in brackets."""
    before = {(row, each["case"]): each for row, each in _rows(document.get("before", ()))}
    rows = []
    for records, each in _rows(document["sizes"]):
        earlier = before.get((records, each["case"]))
        cells = (
            f"{each[key]:.2f}" + ("" if earlier is None else f" ({earlier[key]:.2f})")
            for key in ("answer_s", "start_s", "rest_s", "completed_s")
        )
        rows.append((f"{records:,}", _NAMES[each["case"]], *cells))
    columns = "answer | first run begins | all but arithmetic | completed"
    return harness.table(f"records | models | {columns}", rows)


def _rows(sizes: Sequence[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    for size in sizes:
        for case in size["cases"]:
            yield size["records"], case


def figure(document: dict[str, Any], path: Path) -> None:
    """Draw what is not arithmetic against the number of records, before and after."""
    with harness.picture(path, (8, 5)) as (_, ((axis,),)):
        for place, case in enumerate(_NAMES):
            for key, style in (("before", "o:"), ("sizes", "o-")):
                found = [
                    {"records": records, **each}
                    for records, each in _rows(document.get(key, ()))
                    if each["case"] == case
                ]
                if found:
                    label = _NAMES[case] if key == "sizes" else None
                    how = {"color": f"C{place}", "label": label}
                    harness.plot(axis, found, "records", "rest_s", style, **how)
        axis.set(xscale="log", yscale="log", xlabel="records", ylabel="seconds beside arithmetic")
        axis.legend(fontsize=9)


def met(document: dict[str, Any]) -> bool:
    """Say whether all aims are reached."""
    rests: dict[str, list[float]] = {}
    for _, each in _rows(document["sizes"]):
        rests.setdefault(each["case"], []).append(each["rest_s"])
        late = each["completed_s"] > COMPLETED_S.get(each["case"], _READY_S)
        if late or each["start_s"] > START_S or each["rest_s"] > REST_S:
            return False
    return all(rest[-1] <= GROWTH * rest[0] for rest in rests.values())


if __name__ == "__main__":
    options = {
        "--sizes": {"type": int, "nargs": "+", "default": SIZES},
        "--features": {"type": int, "default": 100},
        "--repeats": {"type": int, "default": 3},
        "--case": {"action": "append", "help": "this one alone"},
        "--before": {"type": Path, "help": "earlier results"},
    }
    harness.main("scale", __doc__, run, options=options, table=table, figure=figure, met=met)
