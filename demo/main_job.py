"""The main job end to end on real data, over HTTP against its own service.

Data: scikit-learn's 1,797 handwritten digits. They name no writers, so ten consecutive records
represent one person here. A fifth is never pushed; every accuracy is measured on it.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

from app.accounting import gaussian
from app.cli.progress import run_progress
from app.client import ApiError, ExpungeClient
from app.client.connection import Json
from app.datasets.files import record_table, to_parquet
from demo.baselines import Baselines
from demo.service import running_service
from workers.training.data import Examples

_CLASSES = 10
_SCALE = 1 / 16
_RECORDS_PER_PERSON = 10
_MODEL: dict[str, Any] = {
    "name": "digits-mlp",
    "dataset": "digits",
    "architecture": {"name": "mlp", "options": {"hidden": [64]}},
    "recipe": {"epochs": 200, "batch_size": 64, "learning_rate": 0.1},
    "policy": {
        "epsilon": 1.0,
        "delta": 1e-5,
        "mechanism": "gradient_clipping",
        "parameters": {"steps": 2000},
    },
}
_TIMEOUT_S = 120.0

console = Console(highlight=False)


@dataclass(frozen=True)
class Digits:
    """The demo's records, and the test examples, which the service never sees."""

    images: np.ndarray
    labels: np.ndarray
    people: np.ndarray
    test: Examples

    @property
    def names(self) -> list[str]:
        """Every person's subject_id."""
        return sorted(set(self.people.tolist()))

    def without(self, forgotten: list[str]) -> Examples:
        """Return the records of all other people."""
        kept = ~np.isin(self.people, forgotten)
        return _examples(self.images[kept], self.labels[kept])


def main() -> None:
    """Run the demo; exit with 1 if a check fails."""
    digits = _load()
    with tempfile.TemporaryDirectory(prefix="expunge-demo-") as directory:
        folder = Path(directory)
        _step("start PostgreSQL, Redis, API, dispatcher and worker")
        with running_service(folder) as client:
            _run(client, digits, folder)


def _run(client: ExpungeClient, digits: Digits, folder: Path) -> None:
    people = digits.names
    first = people[:: round(len(people) / max(1, len(people) // 20))]
    _step(f"push {len(digits.labels)} records of {len(people)} people")
    client.define_dataset(
        "digits",
        features={"shape": [8, 8], "dtype": "uint8", "offset": 0.0, "scale": _SCALE},
        classes=_CLASSES,
    )
    table = record_table(
        record_ids=[f"record-{number}" for number in range(len(digits.labels))],
        subject_ids=digits.people,
        labels=digits.labels,
        features=digits.images,
    )
    client.push_records("digits", to_parquet(table))

    _step("train, and certify the first release in the same sealed run")
    client.define_model(_MODEL)
    with run_progress() as update:
        client.wait_for_model(
            "digits-mlp", timeout_s=_TIMEOUT_S, on_change=lambda run: update(run, "train")
        )
    _require(client.certified("digits-mlp")["number"] == 1, "version 1 is certified")

    _step(f"forget {len(first)} people, 5 % of all, and poll the certificate")
    run, seconds = _forget(client, first)

    _step("download the certified model and verify it offline")
    weights = _download_and_verify(client, folder)

    _step("train three models outside of the service, to compare")
    baselines = Baselines(_MODEL, everyone=digits.without([]), retained=digits.without(first))
    _summarise(weights, digits, baselines, run, seconds)

    _step("forget one more person; the first version is gone")
    _forget(client, [next(name for name in people if name not in first)])
    try:
        trusted = _trusted_keys(folder).read_bytes()
        client.download("digits-mlp", folder, trusted=trusted, number=1)
    except ApiError as error:
        _require(error.status == 410, f"version 1 answers {error.status}: {error}")
    else:
        sys.exit("check failed: version 1 is gone")
    _download_and_verify(client, folder)
    console.print("\n[bold green]done[/]")


def _forget(client: ExpungeClient, people: list[str]) -> tuple[Json, float]:
    """Forget people; return the run and the seconds from POST to the published certificate."""
    posted = time.monotonic()
    request = client.forget("digits", subject_ids=people)
    published = posted
    seen: list[float] = []
    with run_progress() as update:

        def on_change(request: Mapping[str, Any], run: Json | None) -> None:
            nonlocal published
            update(run, request["state"])
            if run is not None and run["epsilon"] is not None and run["epsilon"] not in seen:
                seen.append(run["epsilon"])
            if published == posted and request["state"] in ("certified", "completed"):
                published = time.monotonic()

        ended = client.wait_for_request(request["id"], timeout_s=_TIMEOUT_S, on_change=on_change)
    console.print("epsilon as polled: " + " -> ".join(f"{epsilon:.4g}" for epsilon in seen))
    _require(ended["state"] == "completed", f"the request is {ended['state']}")
    run_id = ended["obligations"][0]["run"]
    if run_id is None:
        sys.exit("check failed: a run has forgotten them")
    return client.run(run_id), published - posted


def _download_and_verify(client: ExpungeClient, folder: Path) -> Path:
    trusted = _trusted_keys(folder)
    files = client.download("digits-mlp", folder, trusted=trusted.read_bytes())
    command = ["verify", str(files.certificate), "--weights", str(files.weights)]
    command += ["--trusted", str(trusted)]
    verified = subprocess.run([sys.executable, "-m", "app.cli", *command], check=False)
    _require(verified.returncode == 0, "the certificate holds")
    return files.weights


def _trusted_keys(folder: Path) -> Path:
    return folder / "data" / "keys" / "trusted-keys.json"


def _summarise(
    weights: Path, digits: Digits, baselines: Baselines, run: Json, seconds: float
) -> None:
    certified = baselines.accuracy_of(safetensors.torch.load_file(weights), digits.test)
    table = Table(title="Accuracy on digits that were never pushed", title_justify="left")
    table.add_column("model")
    table.add_column("accuracy", justify="right")
    table.add_column("model description")
    for name, accuracy, meaning in (
        ("certified", certified, "downloaded from the service, after forgetting 5 %"),
        ("original", baselines.original(digits.test), "all people, uncertified: what was asked"),
        ("retrained", baselines.retrained(digits.test), "from scratch on the others, same budget"),
        ("random start", baselines.random_start(digits.test), "same scale, same fine-tuning"),
    ):
        table.add_row(name, f"{accuracy:.1%}", meaning)
    console.print(table)
    plan = run["plan"]
    phases = run["phase_seconds"] or {}
    console.print(
        f"epsilon {plan['predicted']['epsilon']:.4f} at delta {plan['delta']:g}, "
        f"mu {gaussian.mu_of(epsilon=plan['epsilon'], delta=plan['delta']):.4f}, "
        f"{plan['parameters']['steps']} noisy steps"
    )
    console.print(
        "what the release can still tell of the original: at most "
        f"{plan['predicted']['surviving_information_bits']:.3f} bits"
    )
    console.print(
        f"POST to published certificate {seconds:.1f} s, of which "
        + ", ".join(f"{phase.replace('_', ' ')} {spent:.1f} s" for phase, spent in phases.items())
    )


def _load() -> Digits:
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)
    tested = np.arange(len(labels)) % 5 == 4
    count = int((~tested).sum())
    return Digits(
        images=images[~tested],
        labels=labels[~tested],
        people=np.array([f"person-{i // _RECORDS_PER_PERSON:03}" for i in range(count)]),
        test=_examples(images[tested], labels[tested]),
    )


def _examples(images: np.ndarray, labels: np.ndarray) -> Examples:
    return Examples.from_arrays(images, labels, scale=_SCALE)


def _step(title: str) -> None:
    console.print(f"\n[bold]{title}[/]")


def _require(condition: bool, statement: str) -> None:  # noqa: FBT001
    if not condition:
        console.print(f"[bold red]check failed:[/] {statement}")
        sys.exit(1)
    console.print(f"[green]ok[/] {statement}")
