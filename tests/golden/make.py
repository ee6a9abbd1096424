"""Make a folder of golden certificates with a service of its own: see README.md."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.digits import DATASET, digits_parquet, head, model
from tests.support.service import running

SCHEDULES = {"learning_rate": [0.2, 0.1, 0.05], "gradient_clip": [0.3, 0.2, 0.1]}
SMALL = {"architecture": {"name": "logistic"}}
CASES: dict[str, dict[str, Any]] = {
    "gradient_clipping": {**model("clipped", parameters=SCHEDULES), **SMALL},
    "model_clipping": {**model("projected", mechanism="model_clipping"), **SMALL},
    "retraining": {**model("retrained", mechanism="retraining"), **SMALL},
    "tracked_release": head("tracked", mechanism="tracked_release"),
    "dp_sgd": {
        **model("private", mechanism="dp_sgd", epsilon=8.0, parameters={"group_size": 12}),
        **SMALL,
    },
}


def make(folder: Path) -> None:
    """Train a model for each case, forget one person, and keep what proves it."""
    folder.mkdir()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        running(Path(directory) / "data") as service,
        service.client() as client,
    ):
        client.define_dataset("digits", features=DATASET["features"], classes=10)
        client.push_records("digits", digits_parquet())
        for definition in CASES.values():
            client.define_model(definition)
            client.wait_for_model(definition["name"], timeout_s=60)
        (folder / "checkpoint.txt").write_text(client.log_checkpoint())
        size = int(client.log_checkpoint().split("\n")[1])
        request = client.forget("digits", subject_ids=["subject-3"])
        client.wait_for_request(request["id"], timeout_s=120)
        receipt = {**client.request(request["id"]), "subject_ids": ["subject-3"]}
        answers = client.certificates_of(request["id"], since=size)
        bundles = {answer["model"]: answer["bundle"] for answer in answers}
        for case, definition in CASES.items():
            name = definition["name"]
            weights = client._http.get(
                f"/v1/models/{name}/certified/weights", follow_redirects=True
            )
            (folder / f"{case}.safetensors").write_bytes(weights.content)
            bundle = json.dumps(bundles[name], indent=1)
            (folder / f"{case}.certificate.json").write_text(bundle)
        (folder / "receipt.json").write_text(json.dumps(receipt, indent=1))
        keys = client._http.get("/.well-known/expunge-keys.json").text
        (folder / "keys.json").write_text(keys)


if __name__ == "__main__":
    make(Path(__file__).parent / sys.argv[1])
