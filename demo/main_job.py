"""The main job end to end on real data, over HTTP against its own service.

Three models forget exactly, each with a dataset of its own, so that its answers are timed alone.
The head's public features are a hidden layer of random weights under a fixed seed: nobody's data
entered them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save

from app.cli.waiting import run_progress
from app.client import ApiError, ExpungeClient
from app.runtime.processes.starting import python_command
from demo.digits import TASK, Digits
from demo.service import data_dir_in, running_service, trusted_keys_in

_HEAD: Final = "digits-head"
_FEATURES: Final = 512
_BACKBONE: Final = "random-features"
_NETWORK: Final = {"name": "mlp", "options": {"hidden": [64]}}
_ARCHITECTURES: Final[Mapping[str, Mapping[str, Any]]] = {
    _HEAD: {"name": "ridge_head", "backbone": {"name": _BACKBONE}},
    "digits-ensemble": {"name": "ensemble", "members": 8, "of": _NETWORK},
    "digits-mlp": _NETWORK,
}
_MEANINGS: Final = (
    "a head on public features, computed anew",
    "eight networks: those concerned are left out",
    "one network, trained anew",
)
_LEAVING: Final = 3
_TIMEOUT_S: Final = 600.0


_console = Console(highlight=False)


@dataclass(frozen=True)
class _Forgetful:
    """A model, how accurate it was before and after it forgot, and how long that took."""

    name: str
    before: float
    after: float
    seconds: float


def main() -> None:
    """Run the demo; exit with 1 if a check fails."""
    digits = Digits.load()
    with tempfile.TemporaryDirectory(prefix="expunge-demo-") as directory:
        folder = Path(directory)
        _step("start PostgreSQL, Redis, API, dispatcher and worker")
        with running_service(folder) as client:
            _run(client, digits, folder)


def _run(client: ExpungeClient, digits: Digits, folder: Path) -> None:
    people = digits.names
    leaving = people[:: -(-len(people) // _LEAVING)]
    _publish_features(client)
    found = []
    for name in _ARCHITECTURES:
        _step(f"{name}: train on {len(digits.labels)} records of {len(people)} people, certify")
        _train(client, digits, name)
        before = digits.accuracy_of(
            _download(client, name, folder), trusted=trusted_keys_in(folder)
        )
        _step(f"{name}: forget {len(leaving)} people, and verify offline")
        spent = _forget(client, name, leaving)
        weights = _download(client, name, folder)
        _verify(weights, folder)
        after = digits.accuracy_of(weights, trusted=trusted_keys_in(folder))
        found.append(_Forgetful(name, before, after, spent))
        _console.print(f"POST to certificate in {spent:.2f} s")
    _step("the first version is gone")
    _require_gone(client, folder)
    _step("what was released is what training without them gives, bit for bit")
    _require_equal(data_dir_in(folder))
    _compare(found)
    _console.print("\n[bold green]done[/]")


def _step(title: str) -> None:
    _console.print(f"\n[bold]{title}[/]")


def _require(condition: bool, statement: str) -> None:  # noqa: FBT001
    """Say that a statement holds, or end the demo with 1."""
    if not condition:
        _console.print(f"[bold red]check failed:[/] {statement}")
        sys.exit(1)
    _console.print(f"[green]ok[/] {statement}")


def _publish_features(client: ExpungeClient) -> None:
    generator = np.random.default_rng(2025)
    tensors = {}
    for layer, inputs, outputs in (("1", 64, _FEATURES), ("3", _FEATURES, 10)):
        drawn = generator.standard_normal((outputs, inputs)) * (2 / inputs) ** 0.5
        tensors[f"{layer}.weight"] = drawn.astype(np.float32)
        tensors[f"{layer}.bias"] = np.zeros(outputs, np.float32)
    client.define_backbone(
        {
            "name": _BACKBONE,
            "architecture": {"name": "mlp", "options": {"hidden": [_FEATURES]}},
            "input": {"shape": [8, 8]},
            "classes": 10,
            "source": "random weights under a fixed seed",
        }
    )
    client.upload_backbone(_BACKBONE, save(tensors))


def _train(client: ExpungeClient, digits: Digits, name: str) -> None:
    """Push the records to a dataset of a model's own, and wait for its first version."""
    digits.push(client, name)
    client.define_model(
        {"name": name, "dataset": name, "task": TASK, "architecture": _ARCHITECTURES[name]}
    )
    with run_progress() as update:
        client.wait_for_model(
            name, timeout_s=_TIMEOUT_S, on_change=lambda run: update(run, "train")
        )
    _require(client.certified(name)["number"] == 1, "version 1 is certified")


def _forget(client: ExpungeClient, dataset: str, people: Sequence[str]) -> float:
    """Forget people; return the seconds until that was certified."""
    posted = time.monotonic()
    answer = client.forget(dataset, subject_ids=people)
    state = answer["state"]
    while state not in ("certified", "completed"):
        if state == "failed" or time.monotonic() - posted > _TIMEOUT_S:
            sys.exit(f"check failed: the request to {dataset} is {state}")
        state = client.request(answer["id"], wait_s=5)["state"]
    return time.monotonic() - posted


def _download(client: ExpungeClient, name: str, folder: Path) -> Path:
    return client.download(name, folder, trusted=trusted_keys_in(folder).read_bytes()).weights


def _verify(weights: Path, folder: Path) -> None:
    command = ["verify", weights.with_suffix(".certificate.json"), "--weights", weights]
    command += ["--trusted", trusted_keys_in(folder)]
    verified = subprocess.run(
        python_command("app.cli", *command), check=False, stdout=subprocess.DEVNULL
    )
    _require(verified.returncode == 0, "the certificate holds")


def _require_gone(client: ExpungeClient, folder: Path) -> None:
    trusted = trusted_keys_in(folder).read_bytes()
    try:
        client.download(_HEAD, folder, trusted=trusted, number=1)
    except ApiError as error:
        _require(error.status == 410, f"version 1 answers {error.status}: {error}")
    else:
        sys.exit("check failed: version 1 is gone")


def _require_equal(data_dir: Path) -> None:
    """Train the head anew from the retained records, and compare the files."""
    done = subprocess.run(
        python_command("app.cli", "model", "recompute", _HEAD, "--json"),
        env={**os.environ, "EXPUNGE_DATA_DIR": str(data_dir)},
        stdout=subprocess.PIPE,
        check=False,
    )
    _require(done.returncode == 0, f"{_HEAD} was computed again")
    found = json.loads(done.stdout)
    _console.print(f"released          sha256 {found['released']}")
    _console.print(f"trained from zero sha256 {found['computed']}")
    _require(found["equal"], f"{found['records']} retained records alone give the same file")


def _compare(found: Sequence[_Forgetful]) -> None:
    table = Table(title="Accuracy on digits that were never pushed", title_justify="left")
    table.add_column("model")
    for title in ("before", "after", "certified in"):
        table.add_column(title, justify="right")
    table.add_column("how it forgets three people, exactly")
    for each, meaning in zip(found, _MEANINGS, strict=True):
        figures = (f"{each.before:.1%}", f"{each.after:.1%}", f"{each.seconds:.2f} s")
        table.add_row(each.name, *figures, meaning)
    _console.print(table)
