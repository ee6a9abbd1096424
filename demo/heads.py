"""The second act: heads on public features of the same digits, which forget at once.

Each head has a dataset of its own, so that its answers are timed alone. The public features are a
hidden layer of random weights under a fixed seed: nobody's data entered them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save

from app.client import ExpungeClient
from app.client.answers import Json
from app.runtime.processes.starting import python_command
from demo.digits import TASK, Digits
from demo.saying import console, require, step
from demo.service import data_dir_in, trusted_keys_in

RIDGE: Final = "digits-ridge"
TRACKED: Final = "digits-tracked"
_FEATURES: Final = 512
_BACKBONE: Final = "random-features"
_DEFINITIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    RIDGE: {"architecture": {"name": "ridge_head"}},
    TRACKED: {
        "architecture": {"name": "linear_head"},
        "recipe": {"epochs": 20, "batch_size": 32, "learning_rate": 0.5, "weight_decay": 0.01},
        "policy": {  # few records need much noise: at epsilon 1, these would be hidden altogether
            "epsilon": 8.0,
            "delta": 1e-5,
            "mechanism": "tracked_release",
            "parameters": {"capacity": 3, "steps": 1000},
        },
    },
}
_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True)
class Forgetful:
    """A head after it has forgotten the same people as the network of the first act.

    Attributes:
        seconds: from POST to certificate.
    """

    name: str
    accuracy: float
    seconds: float


def second_act(
    client: ExpungeClient, digits: Digits, first: list[str], folder: Path
) -> list[Forgetful]:
    """Train both heads, forget the same people as in the first act, and then one more from each."""
    step("a ridge head and a tracked head on public features of the same digits")
    _publish_features(client)
    another = next(name for name in digits.names if name not in first)
    trusted = trusted_keys_in(folder)
    found = []
    for name in (RIDGE, TRACKED):
        digits.push(client, name)
        architecture = _DEFINITIONS[name]["architecture"] | {"backbone": {"name": _BACKBONE}}
        client.define_model(
            {
                **_DEFINITIONS[name],
                "name": name,
                "dataset": name,
                "task": TASK,
                "architecture": architecture,
            }
        )
        client.wait_for_model(name, timeout_s=_TIMEOUT_S)
        _, spent = _forget(client, name, people=first)
        weights = client.download(name, folder, trusted=trusted.read_bytes()).weights
        found.append(Forgetful(name, digits.accuracy_of(weights, trusted=trusted), spent))
        console.print(f"{name}: {len(first)} people forgotten in {spent:.2f} s, certificate holds")

    step("forget one more person exactly: the ridge head")
    _, spent = _forget(client, RIDGE, people=[another])
    console.print(f"POST to certificate in {spent:.2f} s")
    anew = _recomputed(RIDGE, data_dir_in(folder))
    console.print(f"released          sha256 {anew['released']}")
    console.print(f"trained from zero sha256 {anew['computed']}")
    require(anew["equal"], f"{anew['records']} retained records alone give the same file")

    step("forget one more record at once: the tracked head")
    before = client.model(TRACKED)["capacity"]
    record = f"record-{int(np.flatnonzero(digits.people == another)[0])}"
    state, spent = _forget(client, TRACKED, records=[record])
    require(state == "certified", f"certified in the answer to the POST, {spent:.2f} s")
    after = client.model(TRACKED)["capacity"]
    console.print(f"capacity without a run: {before} more records before, {after} now")
    return found


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


def _forget(
    client: ExpungeClient, dataset: str, *, people: Sequence[str] = (), records: Sequence[str] = ()
) -> tuple[str, float]:
    """Forget people or records; return the state in the answer and the seconds to certified."""
    posted = time.monotonic()
    answer = client.forget(dataset, subject_ids=people, record_ids=records)
    state = answer["state"]
    while state not in ("certified", "completed"):
        if state == "failed" or time.monotonic() - posted > _TIMEOUT_S:
            sys.exit(f"check failed: the request to {dataset} is {state}")
        state = client.request(answer["id"], wait_s=5)["state"]
    return answer["state"], time.monotonic() - posted


def _recomputed(name: str, data_dir: Path) -> Json:
    """Train a head anew from the retained records; return both digests."""
    done = subprocess.run(
        python_command("app.cli", "model", "recompute", name, "--json"),
        env={**os.environ, "EXPUNGE_DATA_DIR": str(data_dir)},
        stdout=subprocess.PIPE,
        check=False,
    )
    require(done.returncode == 0, f"{name} was computed again")
    found: Json = json.loads(done.stdout)
    return found
