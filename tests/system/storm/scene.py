"""Three datasets of made-up people, eight models of as many mechanisms, and rows to import.

Beside them, a dataset that is destroyed with its model, and a backbone that was made of this.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from app.client import ExpungeClient
from tests.support.digits import DATASET, RECIPE, RECORDS_PER_SUBJECT, TASK
from tests.support.patience import PATIENCE_S
from tests.support.people import People
from tests.support.slow import FACTORY

SUBJECTS = 60
_HEAD = {
    "architecture": {"name": "linear_head"},
    "recipe": {"epochs": 5, "batch_size": 64, "held_out_fraction": 0.2},
}
_NETWORK = {"architecture": {"name": "mlp", "options": {"hidden": [16]}}, "recipe": RECIPE}
_SLOW = {
    "architecture": {"name": "custom", "factory": FACTORY},
    "recipe": {**RECIPE, "batch_size": 128},
}
_LOOSE = {"epsilon": 8.0}
REFILL_AT = 0.25
MODELS: dict[str, dict[str, Any]] = {
    "tracked": {
        "dataset": "alpha",
        **_HEAD,
        "policy": {"mechanism": "tracked_release", "epsilon": 4.0},
    },
    "projected": {
        "dataset": "alpha",
        **_HEAD,
        "policy": {"mechanism": "projected_noisy_sgd", **_LOOSE},
    },
    "clipped": {
        "dataset": "beta",
        **_SLOW,
        "policy": {
            "mechanism": "gradient_clipping",
            "parameters": {"steps": 60},
            "budget_epochs": 60,  # few records are left at the end, and a step is an epoch of them
            "first_release": "as_trained",
        },
    },
    "descended": {
        "dataset": "beta",
        **_HEAD,
        "policy": {"mechanism": "delete_to_descent", **_LOOSE},
    },
    "retrained": {"dataset": "gamma", **_NETWORK, "policy": {"mechanism": "retraining"}},
    "perturbed": {"dataset": "gamma", **_NETWORK, "policy": {"mechanism": "output_perturbation"}},
    "left_out": {
        "dataset": "beta",
        "architecture": {"name": "ensemble", "members": 8, "of": _NETWORK["architecture"]},
        "recipe": RECIPE,
        "policy": {"forget": "leave_out", "refill_at": REFILL_AT, "refill_after_s": None},
    },
    "private": {  # its budget is spent by the first people
        "dataset": "alpha",
        **_NETWORK,
        "policy": {"mechanism": "dp_sgd", **_LOOSE, "parameters": {"capacity": 5}},
    },
}


IMPORTED, DOOMED = "imported", "doomed"
IMPORTED_ROWS = 20_000


def exported(folder: Path) -> str:
    """Write the rows that are imported again and again; return their URL."""
    folder.mkdir()
    for number in range(4):
        ids = range(number, IMPORTED_ROWS, 4)
        table = pa.table({"member": [f"m-{i}" for i in ids], "age": list(ids)})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=500)
    return folder.as_uri()


@dataclass
class Crowd:
    """The people of one dataset.

    Attributes:
        dataset: its name.
        at_first: who is there before the models are trained.
        later: those who are pushed meanwhile, in order; each is a crowd of its own.
    """

    dataset: str
    at_first: People = field(
        default_factory=lambda: People.invent(SUBJECTS * RECORDS_PER_SUBJECT), repr=False
    )
    later: list[People] = field(default_factory=list, repr=False)

    def everyone(self) -> list[People]:
        """Return all people of this dataset."""
        return [self.at_first, *self.later]


def build(client: ExpungeClient) -> list[Crowd]:
    """Have the datasets pushed and the models trained; return the people."""
    crowds = [Crowd(name) for name in ("alpha", "beta", "gamma")]
    for crowd in crowds:
        client.define_dataset(**DATASET | {"name": crowd.dataset})
        client.push_records(crowd.dataset, crowd.at_first.parquet())
    client.define_dataset(IMPORTED, {"age": "int64"}, record_id="member")
    for name, definition in MODELS.items():
        client.define_model({"name": name, "task": TASK, **definition})
    for name in MODELS:
        client.wait_for_model(name, timeout_s=PATIENCE_S)
    return crowds


def build_doomed(client: ExpungeClient) -> tuple[Crowd, bytes]:
    """Have the dataset there that will be destroyed; return its people, and its model's weights."""
    crowd = Crowd(DOOMED)
    client.define_dataset(**DATASET | {"name": DOOMED})
    client.push_records(DOOMED, crowd.at_first.parquet())
    policy = {"mechanism": "retraining"}
    client.define_model(
        {"name": DOOMED, "dataset": DOOMED, "task": TASK, **_NETWORK, "policy": policy}
    )
    client.wait_for_model(DOOMED, timeout_s=PATIENCE_S)
    weights = client.http.get(f"/v1/models/{DOOMED}/versions/1/weights").content
    made = {"architecture": _NETWORK["architecture"], "input": {"shape": [64]}, "classes": 10}
    client.define_backbone({"name": DOOMED, "source": "its model", **made})
    client.upload_backbone(DOOMED, weights)
    return crowd, weights


def models_of(dataset: str) -> list[str]:
    """Return the names of the models that are trained on a dataset."""
    return [name for name, definition in MODELS.items() if definition["dataset"] == dataset]
