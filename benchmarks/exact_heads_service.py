"""From POST to certificate on a service of its own, for heads on cached public features.

The features are the records' own columns here, so that no backbone is timed. One model after the
other, each archived before the next is defined; each forgets one record, then 100 in one request,
then 5,000. Every certificate is checked offline, outside of the time.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from app.client import ExpungeClient
from app.evidence.certificates.verification import verify
from app.registry.datasets.files import record_table, to_parquet
from benchmarks.data import CLASSES
from benchmarks.public_features import PublicFeatures
from demo.service import running_service

_DATASET: Final = "features"
_ROWS_A_FILE: Final = 2500
_POLL_S: Final = 0.02
_TIMEOUT_S: Final = 900.0
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
        _push(client, features, records)
        left = iter(range(records))
        rows = list[dict[str, Any]]()
        for head, definition in heads.items():
            trained_s = _train(client, head, definition)
            for row in _answers(client, head, left, batches, Path(directory)):
                rows.append({"head": head, "records": records, "training_s": trained_s} | row)
            client.archive_model(head)
        return rows


def _push(client: ExpungeClient, features: PublicFeatures, records: int) -> None:
    numbers, labels = features.train.inputs.numpy(), features.train.target.numpy()
    shape = list(features.train.inputs.shape[1:])
    client.define_dataset(_DATASET, features={"shape": shape, "dtype": "float32"}, classes=CLASSES)
    for start in range(0, records, _ROWS_A_FILE):
        rows = slice(start, min(start + _ROWS_A_FILE, records))
        table = record_table(
            record_ids=[f"record-{number}" for number in range(rows.start, rows.stop)],
            labels=labels[rows],
            features=numbers[rows],
        )
        client.push_records(_DATASET, to_parquet(table))


def _train(client: ExpungeClient, head: str, definition: dict[str, Any]) -> float:
    client.define_model({"name": head, "dataset": _DATASET, **definition})
    model = client.wait_for_model(head, timeout_s=_TIMEOUT_S)
    _require(model["latest_run"]["state"] == "published", f"{head} is released")
    return float(sum(model["latest_run"]["phase_seconds"].values()))


def _answers(
    client: ExpungeClient,
    head: str,
    left: Iterator[int],
    batches: Sequence[int],
    folder: Path,
) -> Iterator[dict[str, Any]]:
    for batch in batches:
        record_ids = [f"record-{next(left)}" for _ in range(batch)]
        started = time.perf_counter()
        request = client.forget(_DATASET, record_ids=record_ids)
        while not (certificates := client.certificates_of(request["id"])):
            _require(time.perf_counter() - started < _TIMEOUT_S, "a certificate came")
            time.sleep(_POLL_S)
        seconds = time.perf_counter() - started
        ended = client.wait_for_request(request["id"], timeout_s=_TIMEOUT_S)
        _require(ended["state"] == "completed", "the request is completed")
        run = client.run(ended["obligations"][0]["run"])
        trusted = client.trusted_keys()
        weights = client.download(head, folder, trusted=trusted).weights
        bundle = json.dumps(certificates[0]["bundle"]).encode()
        statement = verify(bundle=bundle, weights=weights, trusted=trusted)
        _require(statement["guarantee"]["epsilon"] == 0, "the certificate says exact")
        yield {
            "forgotten": batch,
            "seconds": seconds,
            "phase_seconds": run["phase_seconds"],
        }


def _require(condition: bool, statement: str) -> None:  # noqa: FBT001
    if not condition:
        raise RuntimeError(f"check failed: {statement}")
