"""Make a folder of golden certificates with a service of its own: see README.md."""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from sklearn.datasets import load_digits

from app.client import ExpungeClient
from app.domain.architectures import ArchitectureSpec
from app.domain.states import Basis
from app.evidence.certificates.signing import statement_of
from app.registry.datasets.columns.parquet import to_parquet
from demo.tables import record_table
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.mechanisms import CASES, of_digits
from tests.support.patience import PATIENCE_S
from tests.support.service import running
from workers.training.networks.architectures import build

RECORDS = 300
PERSON = "subject-3"
SCHEDULES = {"learning_rate": [0.2, 0.1, 0.05], "gradient_clip": [0.3, 0.2, 0.1]}
SMALL = {"architecture": {"name": "logistic"}}
PUBLIC = {"name": "mlp", "options": {"hidden": [4]}}
BACKBONE = {
    "name": "public-digits",
    "architecture": PUBLIC,
    "input": {"shape": [8, 8]},
    "classes": 10,
    "source": "a fresh initialisation under a public seed",
}


def on_public(*, frozen: bool) -> dict[str, Any]:
    """Return an architecture on the public backbone."""
    own = {"name": "linear_head"} if frozen else PUBLIC
    return {"architecture": own | {"backbone": {"name": BACKBONE["name"], "frozen": frozen}}}


def small(mechanism: str, **policy: Any) -> dict[str, Any]:
    """Return the definition of a small model."""
    definition = of_digits(mechanism, **policy)
    return definition | (SMALL if definition["architecture"]["name"] == "mlp" else {})


MADE = {name: small(name) for name in CASES} | {
    "gradient_clipping": small("gradient_clipping", parameters=SCHEDULES),
    "gradient_clipping_public": {**model("clipped-public"), **on_public(frozen=False)},
    "tracked_release_frozen": {
        **of_digits("tracked_release", "tracked-frozen"),
        **on_public(frozen=True),
    },
    "noisy_gd_convex": small("noisy_gd_convex", **CASES["noisy_gd_convex"].adaptive or {}),
}
LONERS = [f"loner-{number}" for number in range(40)]
SPLIT = {
    **model("split"),
    **SMALL,
    "dataset": "few",
    "recipe": {"epochs": 2, "batch_size": 8, "held_out_fraction": 0.5},
}
AS_TRAINED = {**model("open", first_release="as_trained"), **SMALL}


def make(folder: Path) -> None:
    """Train a model for each case, forget one person, and keep what proves it."""
    folder.mkdir()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        running(Path(directory) / "data") as service,
        service.client() as client,
    ):
        _define(client)
        checkpoint = client.log_checkpoint()
        (folder / "checkpoint.txt").write_text(checkpoint)
        _keep(client, folder, "as_trained", AS_TRAINED["name"], client.version_bundle("open", 1))
        by_model = {definition["name"]: case for case, definition in MADE.items()}
        clipped = MADE["gradient_clipping"]["name"]
        for receipt, kept in (("receipt", by_model), ("restated.receipt", {clipped: "restated"})):
            bundles = _forget(
                client, "digits", PERSON, folder / f"{receipt}.json", since=checkpoint
            )
            for name, case in kept.items():
                _keep(client, folder, case, name, bundles[name])
        _exclude(client, folder, since=checkpoint)
        (folder / "trusted-keys.json").write_bytes(client.trusted_keys())


def _define(client: ExpungeClient) -> None:
    client.define_dataset(**DATASET)
    client.push_records("digits", digits_parquet(RECORDS))
    client.define_backbone(BACKBONE)
    client.upload_backbone(BACKBONE["name"], _public_weights())
    for definition in (*MADE.values(), AS_TRAINED):
        client.define_model(definition)
        client.wait_for_model(definition["name"], timeout_s=PATIENCE_S)


def _forget(
    client: ExpungeClient, dataset: str, person: str, receipt: Path, *, since: str
) -> Mapping[str, dict[str, Any]]:
    """Forget a person; return the bundle of each model."""
    request = client.forget(dataset, subject_ids=[person])
    client.wait_for_request(request["id"], timeout_s=PATIENCE_S)
    kept = {**client.request(request["id"]), "subject_ids": [person]}
    receipt.write_text(json.dumps(kept, indent=1))
    answers = client.certificates_of(request["id"], since=int(since.split("\n")[1]))
    return {answer["model"]: answer["bundle"] for answer in answers}


def _exclude(client: ExpungeClient, folder: Path, *, since: str) -> None:
    """Forget people of one record each until one was held out from training."""
    client.define_dataset(**DATASET | {"name": "few"})
    client.push_records("few", _lone_records())
    name = SPLIT["name"]
    client.define_model(SPLIT)
    client.wait_for_model(name, timeout_s=PATIENCE_S)
    for person in LONERS:
        receipt = folder / "exclusion.receipt.json"
        bundle = _forget(client, "few", person, receipt, since=since)[name]
        statement = statement_of(json.dumps(bundle["envelope"]))
        if statement["predicate"]["basis"] == Basis.EXCLUDED_FROM_TRAINING:
            _keep(client, folder, "exclusion", name, bundle)
            return
    raise RuntimeError("no record was held out: try again")


def _keep(
    client: ExpungeClient, folder: Path, case: str, name: str, bundle: Mapping[str, Any]
) -> None:
    weights = client.http.get(f"/v1/models/{name}/certified/weights", follow_redirects=True)
    (folder / f"{case}.safetensors").write_bytes(weights.content)
    (folder / f"{case}.certificate.json").write_text(json.dumps(bundle, indent=1))


def _lone_records() -> bytes:
    """Return records of one person each."""
    images, labels = load_digits(return_X_y=True)
    return to_parquet(
        record_table(
            record_ids=[f"record-of-{person}" for person in LONERS],
            subject_ids=LONERS,
            labels=labels[: len(LONERS)],
            features=images[: len(LONERS)].reshape(-1, 8, 8).astype(np.uint8),
        )
    )


def _public_weights() -> bytes:
    torch.manual_seed(0)
    network = build(
        ArchitectureSpec.from_json(PUBLIC), input_shape=(8, 8), classes=10, allowed_factories=[]
    )
    return safetensors.torch.save(network.state_dict())


if __name__ == "__main__":
    make(Path(__file__).parent / sys.argv[1])
