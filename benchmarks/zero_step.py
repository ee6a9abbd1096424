"""How soon a request is certified that needs no step: ``python -m benchmarks.zero_step``.

A service of its own, as ``expunge up`` starts it, holds a softmax head on raw pixels. Tracked
release knows how far one record can have moved it; while the noise that its weights already have
hides that, no step and no noise is due and a run is reading, signing and publishing. Each request
is timed from before its POST until its signed certificate is in the caller's hands; whether the
certificate holds is checked offline afterwards. The limit: two seconds.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any, Final

from app.accounting.histories.history import History, Steps
from app.certificates.verification import verify
from app.client import ExpungeClient
from app.datasets.files import record_table, to_parquet
from benchmarks.data import CLASSES, Pictures, load
from demo.service import running_service

REQUESTS: Final = 10
LIMIT_S: Final = 2.0
RESULTS: Final = Path(__file__).parent / "results" / "zero_step.json"
_NAME: Final = "head"
_POLL_S: Final = 0.02
_TIMEOUT_S: Final = 300.0
# Few records leave little room for requests without a step, unless the release is noisier.
_RELEASE_NOISE: Final = {"mnist": 0.05, "digits": 0.5}


@dataclass(frozen=True)
class Answer:
    """What one request took.

    Attributes:
        seconds: from before the POST to the certificate.
        phases: seconds of the run's phases, as the worker measured them.
    """

    seconds: float
    phases: dict[str, float]


def main() -> None:
    """Measure, print and write; exit with 1 above the limit."""
    document = measure(load("mnist"), requests=REQUESTS)
    print(json.dumps(document, indent=1))
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(int(document["largest_s"] >= LIMIT_S))


def measure(pictures: Pictures, *, requests: int) -> dict[str, Any]:
    """Let a head forget one record after the other; return the seconds that each took.

    Raises:
        RuntimeError: a request needed steps, failed, or its certificate does not hold.
    """
    with (
        tempfile.TemporaryDirectory(prefix="expunge-zero-step-") as directory,
        running_service(Path(directory)) as client,
    ):
        _set_up(client, pictures)
        answers = list(islice(_answers(client, Path(directory)), requests))
    seconds = [answer.seconds for answer in answers]
    return {
        "data": pictures.name,
        "note": pictures.note,
        "records": len(pictures.train),
        "requests": requests,
        "limit_s": LIMIT_S,
        "median_s": median(seconds),
        "largest_s": max(seconds),
        "seconds": seconds,
        "phase_seconds": {
            phase: median(answer.phases[phase] for answer in answers) for phase in answers[0].phases
        },
    }


def _set_up(client: ExpungeClient, pictures: Pictures) -> None:
    """Push the records, and train and release the head."""
    train = pictures.train
    records, shape = len(train), list(train.input_shape)
    features = {"shape": shape, "dtype": "uint8", "offset": train.offset, "scale": train.scale}
    client.define_dataset("pictures", features=features, classes=CLASSES)
    table = record_table(
        record_ids=[f"record-{number}" for number in range(records)],
        subject_ids=[None] * records,
        labels=train.labels.numpy(),
        features=train.features.numpy(),
    )
    client.push_records("pictures", to_parquet(table))
    noise = {"noise_std": _RELEASE_NOISE[pictures.name]}
    client.define_model(
        {
            "name": _NAME,
            "dataset": "pictures",
            "architecture": {"name": "linear_head"},
            "recipe": {"epochs": 5, "batch_size": 1024, "weight_decay": 0.1},
            "policy": {"epsilon": 1.0, "mechanism": "tracked_release", "parameters": noise},
        }
    )
    model = client.wait_for_model(_NAME, timeout_s=_TIMEOUT_S)
    _require(model["latest_run"]["state"] == "published", "the head is released")


def _answers(client: ExpungeClient, folder: Path) -> Iterator[Answer]:
    """Forget one record after the other, passing over those that were held out of training."""
    for number in count():
        answer = _forget(client, f"record-{number}", folder)
        if answer is not None:
            yield answer


def _forget(client: ExpungeClient, record_id: str, folder: Path) -> Answer | None:
    """Forget one record; return what it took, or None where no run was due.

    The certificate is checked offline, outside of the time.
    """
    started = time.perf_counter()
    request = client.forget("pictures", record_ids=[record_id])
    while not (certificates := client.certificates_of(request["id"])):
        _require(time.perf_counter() - started < _TIMEOUT_S, "a certificate came")
        time.sleep(_POLL_S)
    seconds = time.perf_counter() - started
    ended = client.wait_for_request(request["id"], timeout_s=_TIMEOUT_S)
    run_id = ended["obligations"][0]["run"]
    if run_id is None:
        return None
    _check(client, certificates[0], folder)
    return Answer(seconds, client.run(run_id)["phase_seconds"])


def _check(client: ExpungeClient, certificate: dict[str, Any], folder: Path) -> None:
    """Require that a certificate holds and that its last run took no step."""
    trusted = client.trusted_keys()
    files = client.download(_NAME, folder, trusted=trusted)
    bundle = json.dumps(certificate["bundle"]).encode()
    statement = verify(bundle=bundle, weights=files.weights, trusted=trusted)
    history = History.from_json(statement["mechanism"]["parameters"]["history"])
    taken = [event for event in history.last_run if isinstance(event, Steps)]
    _require(not taken, "no step was needed")


def _require(condition: bool, statement: str) -> None:  # noqa: FBT001
    if not condition:
        raise RuntimeError(f"check failed: {statement}")


if __name__ == "__main__":
    main()
