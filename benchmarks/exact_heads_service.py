"""From POST to certificate on a service of its own, for heads on cached public features.

The features are the records' own columns here, so that no backbone is timed. One model after the
other, each archived before the next is defined; each forgets one record, then 100 in one request,
then 5,000. Every certificate is checked offline, outside of the time.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.data import CLASSES
from benchmarks.public_features import PublicFeatures
from demo.service import running_service

_DATASET: Final = "features"
_ALL: Final = {"held_out_fraction": 0.0}


def definitions(
    features: PublicFeatures, *, weight_decay: float, tolerance: float, regularisation: float
) -> dict[str, dict[str, Any]]:
    """Return what is defined of each head."""
    return {
        "ridge": {
            "architecture": {
                "name": "ridge_head",
                "options": {"feature_range": features.feature_range},
            },
            "recipe": _ALL,
            "policy": {
                "mechanism": "sufficient_statistics",
                "parameters": {"regularisation": regularisation},
            },
        },
        "softmax": {
            "architecture": {"name": "linear_head"},
            "recipe": {**_ALL, "weight_decay": weight_decay},
            "policy": {"mechanism": "exact_training", "parameters": {"tolerance": tolerance}},
        },
    }


def measure(
    features: PublicFeatures,
    heads: dict[str, dict[str, Any]],
    *,
    records: int,
    batches: Sequence[int],
) -> list[dict[str, Any]]:
    """Return the seconds of each head's requests, for so many records each.

    Raises:
        RuntimeError: a model or request failed, or a certificate does not hold.
    """
    with (
        tempfile.TemporaryDirectory(prefix="expunge-exact-heads-") as directory,
        running_service(Path(directory)) as client,
    ):
        numbers, labels = features.train.inputs.numpy(), features.train.target.numpy()
        described = {"shape": list(numbers.shape[1:]), "dtype": "float32"}
        client.define_dataset(_DATASET, features=described, classes=CLASSES)
        harness.push(client, _DATASET, numbers[:records], labels[:records])
        left = iter(range(records))
        rows = list[dict[str, Any]]()
        for head, definition in heads.items():
            named = {"name": head, "dataset": _DATASET, **definition}
            row = {"head": head, "records": records, "training_s": harness.released(client, named)}
            for batch in batches:
                ids = [f"record-{next(left)}" for _ in range(batch)]
                seconds, phases, statement = harness.certified(
                    client, head, _DATASET, ids, Path(directory)
                )
                harness.require(statement["guarantee"]["epsilon"] == 0, "it says exact")
                measured = {"forgotten": batch, "seconds": seconds, "phase_seconds": phases}
                rows.append(row | measured)
            client.archive_model(head)
        return rows
