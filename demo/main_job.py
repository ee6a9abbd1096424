"""The main job end to end on real data, over HTTP against its own service."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from app.accounting import gaussian
from app.cli.waiting import run_progress
from app.client import ApiError, ExpungeClient
from app.client.answers import Json
from app.runtime.processes.starting import python_command
from demo.baselines import Baselines
from demo.digits import TASK, Digits
from demo.heads import Forgetful, second_act
from demo.saying import console, require, step
from demo.service import running_service, trusted_keys_in

_MODEL: dict[str, Any] = {
    "name": "digits-mlp",
    "dataset": "digits",
    "task": TASK,
    "architecture": {"name": "mlp", "options": {"hidden": [64]}},
    "recipe": {"epochs": 200, "batch_size": 64, "learning_rate": 0.1},
    "policy": {
        "epsilon": 1.0,
        "delta": 1e-5,
        "mechanism": "gradient_clipping",
        "parameters": {"steps": 2000},
    },
}
_MEANINGS = (
    "network that has forgotten 5 %, epsilon 1",
    "head on public features that has forgotten 5 %, exactly",
    "the same with noise, epsilon 8: the next are certified at once",
)
_TIMEOUT_S = 600.0


def main() -> None:
    """Run the demo; exit with 1 if a check fails."""
    digits = Digits.load()
    with tempfile.TemporaryDirectory(prefix="expunge-demo-") as directory:
        folder = Path(directory)
        step("start PostgreSQL, Redis, API, dispatcher and worker")
        with running_service(folder) as client:
            _run(client, digits, folder)


def _run(client: ExpungeClient, digits: Digits, folder: Path) -> None:
    people = digits.names
    first = people[:: round(len(people) / max(1, len(people) // 20))]
    step(f"push {len(digits.labels)} records of {len(people)} people")
    digits.push(client, "digits")

    step("train, and certify the first release in the same sealed run")
    client.define_model(_MODEL)
    with run_progress() as update:
        client.wait_for_model(
            "digits-mlp", timeout_s=_TIMEOUT_S, on_change=lambda run: update(run, "train")
        )
    require(client.certified("digits-mlp")["number"] == 1, "version 1 is certified")

    step(f"forget {len(first)} people, 5 % of all, and poll the certificate")
    run, seconds = _forget(client, first)

    step("download the certified model and verify it offline")
    weights = _download_and_verify(client, folder)
    accuracy = digits.accuracy_of(weights, trusted=trusted_keys_in(folder))

    step("the first version is gone")
    try:
        trusted = trusted_keys_in(folder).read_bytes()
        client.download("digits-mlp", folder, trusted=trusted, number=1)
    except ApiError as error:
        require(error.status == 410, f"version 1 answers {error.status}: {error}")
    else:
        sys.exit("check failed: version 1 is gone")

    network = Forgetful("digits-mlp", accuracy, seconds)
    heads = second_act(client, digits, first, folder)
    step("train three models outside of the service, to compare")
    baselines = Baselines(_MODEL, everyone=digits.without([]), retained=digits.without(first))
    _compare([network, *heads], baselines, digits)
    _explain(run, seconds)
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
    require(ended["state"] == "completed", f"the request is {ended['state']}")
    run_id = ended["obligations"][0]["run"]
    if run_id is None:
        sys.exit("check failed: a run has forgotten them")
    return client.run(run_id), published - posted


def _download_and_verify(client: ExpungeClient, folder: Path) -> Path:
    trusted = trusted_keys_in(folder)
    files = client.download("digits-mlp", folder, trusted=trusted.read_bytes())
    command = ["verify", str(files.certificate), "--weights", str(files.weights)]
    command += ["--trusted", str(trusted)]
    verified = subprocess.run(python_command("app.cli", *command), check=False)
    require(verified.returncode == 0, "the certificate holds")
    return files.weights


def _compare(certified: list[Forgetful], baselines: Baselines, digits: Digits) -> None:
    table = Table(title="Accuracy on digits that were never pushed", title_justify="left")
    table.add_column("model")
    table.add_column("accuracy", justify="right")
    table.add_column("certified in", justify="right")
    table.add_column("model description")
    for each, meaning in zip(certified, _MEANINGS, strict=True):
        table.add_row(each.name, f"{each.accuracy:.1%}", f"{each.seconds:.2f} s", meaning)
    table.add_section()
    for name, accuracy, meaning in (
        ("original", baselines.original(digits.test), "all people, uncertified: what was asked"),
        ("retrained", baselines.retrained(digits.test), "from scratch on the others, same budget"),
        ("random start", baselines.random_start(digits.test), "same scale, same fine-tuning"),
    ):
        table.add_row(name, f"{accuracy:.1%}", "", meaning)
    console.print(table)


def _explain(run: Json, seconds: float) -> None:
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
        f"digits-mlp: POST to published certificate {seconds:.1f} s, of which "
        + ", ".join(f"{phase.replace('_', ' ')} {spent:.1f} s" for phase, spent in phases.items())
    )
