"""What both attacks share: people whose secret is a coin, a service that learns it, and the count.

Each person has one record, on an axis of its own, whose label is a fair coin. Beside it lie two
witnesses, one of each label. A release tells of each axis how likely label 1 is there.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import expunge
from app.registry.datasets.columns.parquet import to_parquet
from workers.audit import statistics

PEOPLE, CONFIDENCE = 48, 0.95
TRUSTED = Path(".expunge/keys/trusted-keys.json")
AXES = pa.table(
    {
        "features": pa.FixedSizeListArray.from_arrays(
            pa.array(np.eye(PEOPLE, dtype=np.float32).reshape(-1)), PEOPLE
        )
    }
)
INPUT = {"name": "features", "kind": "array", "shape": [PEOPLE], "dtype": "float32"}
DEFINITION: Mapping[str, Any] = {
    "task": {
        "name": "classification",
        "inputs": [INPUT],
        "target": {"column": "label", "classes": [0, 1]},
    },
    "architecture": {"name": "linear_head"},
    "recipe": {"held_out_fraction": 0},
}


def coins() -> np.ndarray:
    """Return a fair coin for each person."""
    return np.array([secrets.randbelow(2) for _ in range(PEOPLE)])


class Service:
    """A model on a running service, trained by the default recipe, that has learned the coins."""

    def __init__(self, labels: np.ndarray, policy: Mapping[str, Any]) -> None:
        self.client, self.name = expunge.connect(), f"attacked-{secrets.token_hex(4)}"
        kinds = {"person": labels, "zero": np.zeros_like(labels), "one": np.ones_like(labels)}
        rows = pa.concat_tables(
            AXES.append_column(
                "id", pa.array([f"{kind}-{axis}" for axis in range(PEOPLE)])
            ).append_column("label", pa.array(found))
            for kind, found in kinds.items()
        )
        columns = {"features": f"list<float32, {PEOPLE}>", "label": "int64"}
        self.client.define_dataset(self.name, columns, record_id="id")
        self.client.push_records(self.name, to_parquet(rows))
        named = {"name": self.name, "dataset": self.name, "policy": policy}
        self.client.define_model({**DEFINITION, **named})
        self.client.wait_for_model(self.name, timeout_s=600)

    def forget(self, record_ids: Iterable[str]) -> None:
        """Have records forgotten, and wait for the certificate."""
        request = self.client.forget(self.name, record_ids=[*record_ids])
        self.client.wait_for_request(request["id"], timeout_s=600)

    def release(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Return how much likelier label 1 is on each axis, and what the certificate says."""
        trusted = TRUSTED.read_bytes()
        weights = self.client.download(self.name, Path("attacked"), trusted=trusted).weights
        found = expunge.load(weights, trusted=TRUSTED).predict(AXES)
        scores = np.array(found["probabilities"].to_pylist())[:, 1] - 0.5
        return scores, expunge.verify(weights, trusted=TRUSTED)

    def archive(self) -> None:
        """Archive what was made."""
        self.client.archive_model(self.name)
        self.client.archive_dataset(self.name)


def told(
    attacked: str, guarantee: Mapping[str, Any], scores: np.ndarray, labels: np.ndarray
) -> None:
    """Print how many coins were guessed from the scores, and what that says of a guarantee."""
    right = int(((scores > 0) == (labels == 1)).sum())
    epsilon = guarantee["epsilon"]
    counted = {"guesses": PEOPLE, "right": right, "delta": guarantee["delta"] if epsilon else 0.0}
    found = {
        "attacked": attacked,
        "adaptive": guarantee["adaptive"],
        "epsilon": round(epsilon, 3),
        "right": right,
        "of": PEOPLE,
        "advantage": round(2 * right / PEOPLE - 1, 3),
        "p_value": float(f"{statistics.p_value(epsilon=epsilon, **counted):.2g}"),
        "epsilon_at_least": round(
            statistics.epsilon_lower_bound(confidence=CONFIDENCE, **counted), 2
        ),
    }
    print(json.dumps(found), flush=True)
