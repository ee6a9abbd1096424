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
from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.states import Basis
from app.evidence.certificates.signing import statement_of
from app.registry.datasets.files import record_table, to_parquet
from tests.support.digits import DATASET, digits_parquet, head, model
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
# A softmax head of 64 features, its loss bounded as tanh(loss): |f''| <= 1/2 + 0.77 * 2.
NON_CONVEX = {
    "loss_bound": 1.0,
    "smoothness": 2.1,
    "weight_decay": 21.0,
    "learning_rate": 1.38e-5,
    "noise_std": 0.02379,
    "order": 1.5,
    "request_size": 10,
    "dimension": 640,
}


def on_public(*, frozen: bool) -> dict[str, Any]:
    """Return an architecture on the public backbone."""
    own = {"name": "linear_head"} if frozen else PUBLIC
    return {"architecture": own | {"backbone": {"name": BACKBONE["name"], "frozen": frozen}}}


CASES: dict[str, dict[str, Any]] = {
    "gradient_clipping": {**model("clipped", parameters=SCHEDULES), **SMALL},
    "gradient_clipping_public": {**model("clipped-public"), **on_public(frozen=False)},
    "model_clipping": {**model("projected", mechanism="model_clipping"), **SMALL},
    "output_perturbation": {**model("perturbed", mechanism="output_perturbation"), **SMALL},
    "retraining": {**model("retrained", mechanism="retraining"), **SMALL},
    "exact_training": head("exact", mechanism="exact_training"),
    "sufficient_statistics": {
        **head("solved", mechanism="sufficient_statistics"),
        "architecture": {"name": "ridge_head"},
        "recipe": {"held_out_fraction": 0.2},
    },
    "tracked_release": head("tracked", mechanism="tracked_release"),
    "tracked_release_frozen": {
        **head("tracked-frozen", mechanism="tracked_release"),
        **on_public(frozen=True),
    },
    "delete_to_descent": head("descended", mechanism="delete_to_descent"),
    "projected_noisy_sgd": head("noisy-batches", mechanism="projected_noisy_sgd"),
    "langevin_unlearning": head("langevin", mechanism="langevin_unlearning"),
    "noisy_gd_convex": head(
        "adaptive",
        epochs=60,
        mechanism="noisy_gd_convex",
        adaptive=True,
        epsilon=8.0,
        parameters={"forgotten": 20},
    ),
    "noisy_gd_nonconvex": {
        **head("nonconvex", mechanism="noisy_gd_nonconvex", epsilon=50.0, parameters=NON_CONVEX),
        "architecture": {"name": "linear_head", "options": {"bias": 0}},
    },
    "dp_sgd": {
        **model("private", mechanism="dp_sgd", epsilon=8.0, parameters={"capacity": 12}),
        **SMALL,
    },
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
        by_model = {definition["name"]: case for case, definition in CASES.items()}
        clipped = CASES["gradient_clipping"]["name"]
        for receipt, kept in (("receipt", by_model), ("restated.receipt", {clipped: "restated"})):
            bundles = _forget(
                client, "digits", PERSON, folder / f"{receipt}.json", since=checkpoint
            )
            for name, case in kept.items():
                _keep(client, folder, case, name, bundles[name])
        _exclude(client, folder, since=checkpoint)
        (folder / "trusted-keys.json").write_bytes(client.trusted_keys())


def _define(client: ExpungeClient) -> None:
    client.define_dataset("digits", features=DATASET["features"], classes=10)
    client.push_records("digits", digits_parquet(RECORDS))
    client.define_backbone(BACKBONE)
    client.upload_backbone(BACKBONE["name"], _public_weights())
    for definition in (*CASES.values(), AS_TRAINED):
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
    client.define_dataset("few", features=DATASET["features"], classes=10)
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
    weights = client._http.get(f"/v1/models/{name}/certified/weights", follow_redirects=True)
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
