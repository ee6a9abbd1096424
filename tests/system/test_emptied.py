"""Models of which every record was forgotten, over HTTP and with real workers."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.evidence.certificates.verification import verify
from app.registry.datasets.columns.parquet import to_parquet
from app.services import Services
from demo.tables import record_table
from tests.support.digits import DATASET, digits_parquet, head, model
from tests.support.trust import trust_in

RECORDS = 60
MODELS = [
    model("clipped"),
    model("retrained", mechanism="retraining"),
    model("open", first_release="as_trained"),
    model("private", mechanism="dp_sgd", epsilon=8.0, parameters={"capacity": 20}),
    head("tracked", mechanism="tracked_release"),
    head("descent", mechanism="delete_to_descent"),
]


def newcomers() -> bytes:
    """Return records that were never forgotten."""
    rng = np.random.default_rng(3)
    return to_parquet(
        record_table(
            record_ids=[f"new-{i}" for i in range(RECORDS)],
            labels=[i % 10 for i in range(RECORDS)],
            features=rng.integers(0, 16, (RECORDS, 8, 8)).astype(np.uint8),
        )
    )


def forget(api: TestClient, *records: str) -> str:
    body = {"dataset": "digits", "record_ids": records}
    answer = api.post("/v1/forget-requests", json=body)
    assert answer.status_code in (201, 202), answer.text
    return str(answer.json()["id"])


def require_certified(api: TestClient, services: Services, name: str, tmp_path: Path) -> int:
    """Check the served version offline; return its number."""
    number = int(api.get(f"/v1/models/{name}/certified").json()["number"])
    weights = tmp_path / "weights"
    weights.write_bytes(api.get(f"/v1/models/{name}/certified/weights").content)
    bundle = api.get(f"/v1/models/{name}/versions/{number}/certificate").json()
    verify(bundle=json.dumps(bundle).encode(), weights=weights, trusted=trust_in(services))
    return number


@pytest.fixture
def digits(api: TestClient) -> TestClient:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(RECORDS))
    return api


def test_emptied_models_are_withdrawn_and_trained_again(
    digits: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    for definition in MODELS:
        assert digits.post("/v1/models", json=definition).status_code == 201
    work()
    everything = forget(digits, *(f"record-{i}" for i in range(RECORDS)))
    work()

    request = digits.get(f"/v1/forget-requests/{everything}").json()
    assert request["state"] == "completed"
    assert {owed["state"] for owed in request["obligations"]} == {"cancelled"}
    assert digits.get(f"/v1/forget-requests/{everything}/certificates").json() == []
    for definition in MODELS:
        path = f"/v1/models/{definition['name']}"
        for part in ("certified", "certified/weights", "versions/1/weights"):
            answer = digits.get(f"{path}/{part}", follow_redirects=False)
            assert answer.status_code == 410
            assert "every record that it could be trained on was forgotten" in answer.text
        assert digits.get(f"{path}/versions").json()["items"][0]["state"] == "shredded"

    digits.put("/v1/datasets/digits/records", content=newcomers())
    for definition in MODELS:
        run = digits.get(f"/v1/models/{definition['name']}").json()["latest_run"]
        answer = digits.post(f"/v1/runs/{run['id']}/retry")
        assert (answer.status_code, answer.json()["kind"]) == (202, "train"), answer.text
    work()
    for definition in MODELS:
        assert require_certified(digits, services, str(definition["name"]), tmp_path) == 2
    one = forget(digits, *(f"new-{i}" for i in range(12)))
    work()
    assert digits.get(f"/v1/forget-requests/{one}").json()["state"] == "completed"
    for definition in MODELS:
        name = str(definition["name"])
        number = 2 if name == "private" else 3  # its new training covers 20 records
        assert require_certified(digits, services, name, tmp_path) == number


def upload(api: TestClient, weights: bytes) -> None:
    media_type = {"Content-Type": "application/octet-stream"}
    answer = api.put("/v1/models/foreign/weights", content=weights, headers=media_type)
    assert answer.status_code == 202, answer.text


def test_weights_that_come_again_are_unlearned_from_all_that_was_forgotten(
    digits: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    digits.post("/v1/models", json=model("teacher"))
    work()
    weights = digits.get("/v1/models/teacher/certified/weights").content
    assert digits.post("/v1/models", json=model("foreign") | {"weights": "upload"}).is_success
    upload(digits, weights)
    work()
    assert require_certified(digits, services, "foreign", tmp_path) == 1
    forget(digits, *(f"record-{i}" for i in range(RECORDS)))
    work()
    assert digits.get("/v1/models/foreign/certified").status_code == 410
    upload(digits, weights)  # there is nothing to learn from yet, not even a stored shard
    work()
    assert digits.get("/v1/models/foreign").json()["latest_run"]["state"] == "cancelled"
    digits.put("/v1/datasets/digits/records", content=newcomers())
    upload(digits, weights)
    work()
    assert require_certified(digits, services, "foreign", tmp_path) == 2


def test_weights_for_a_dataset_that_never_had_a_record_are_not_withdrawn(
    api: TestClient, work: Callable[[], None], digits: TestClient
) -> None:
    digits.post("/v1/models", json=model("teacher"))
    work()
    weights = digits.get("/v1/models/teacher/certified/weights").content
    api.post("/v1/datasets", json=DATASET | {"name": "bare"})
    assert api.post(
        "/v1/models", json=model("foreign") | {"dataset": "bare", "weights": "upload"}
    ).is_success
    upload(api, weights)
    work()
    run = api.get("/v1/models/foreign").json()["latest_run"]
    assert (run["state"], run["failure_reason"][:20]) == ("failed", "no record is left to")
