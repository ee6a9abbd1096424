"""What becomes of a model once its mechanism has spent what it had, in fresh workers.

A policy's budget is spent, one record is left, then none, and then there are new ones.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.services import Services
from tests.support.digits import DATASET, digits_parquet
from tests.support.fresh_workers import FreshWorkers
from tests.support.mechanisms import Document, of_digits
from tests.support.workshop import Workshop
from tests.system.test_emptied import newcomers, require_certified
from tests.system.test_mechanisms import POLICIES, name_of

RECORDS = 300
EMPTIED = "every record that it could be trained on was forgotten"


@pytest.fixture
def workers(api: TestClient, services: Services) -> Iterator[FreshWorkers]:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(RECORDS))
    workers = FreshWorkers(services)
    yield workers
    assert not any(workers.late.values())


def forget(api: TestClient, workers: FreshWorkers, **whom: list[str]) -> dict:
    answer = api.post("/v1/forget-requests", json={"dataset": "digits", **whom})
    assert answer.status_code < 300, answer.text
    workers.work()
    return dict(api.get(answer.headers["Location"]).json())


@pytest.mark.parametrize(("mechanism", "policy"), POLICIES)
def test_a_model_forgets_beyond_its_budget_to_the_last_record_and_begins_again(
    api: TestClient,
    services: Services,
    workers: FreshWorkers,
    tmp_path: Path,
    mechanism: str,
    policy: Document,
) -> None:
    name = name_of(mechanism, policy)
    answer = api.post("/v1/models", json=of_digits(mechanism, name, **policy))
    assert answer.status_code == 201
    workers.work()
    beyond = {"subject_ids": [f"subject-{i}" for i in range(3, 8)]}  # no budget covers so many
    rest = [f"record-{i}" for i in range(RECORDS) if not 30 <= i < 80]
    parts = [beyond, *({"record_ids": some} for some in (rest[:-30], rest[-30:-1], rest[-1:]))]
    for part in parts:
        request = forget(api, workers, **part)
        if policy.get("adaptive") and request["state"] == "failed":
            request = change_policy(api, workers, name, request)
        assert request["state"] == "completed", request["failure_reason"]
        served = api.get(f"/v1/models/{name}/certified")
        if served.is_success:
            require_certified(api, services, name, tmp_path)
    assert served.status_code == 410
    assert EMPTIED in served.json()["detail"]

    api.put("/v1/datasets/digits/records", content=newcomers())
    assert api.post(f"/v1/models/{name}/retrain").status_code == 202
    workers.work()
    assert require_certified(api, services, name, tmp_path) >= 2 + (mechanism != "dp_sgd")
    assert {run.state for run in Workshop(services).runs()} <= {"published", "cancelled"}


def change_policy(api: TestClient, workers: FreshWorkers, name: str, request: dict) -> dict:
    """Do what the reason of a failed request says."""
    assert "noise cannot carry" in request["failure_reason"]
    assert "exact_training" in request["failure_reason"]
    policy = {"mechanism": "exact_training", "parameters": {}}
    answer = api.patch(f"/v1/models/{name}", json={"policy": policy})
    assert answer.is_success, answer.text
    api.post(f"/v1/forget-requests/{request['id']}/retry")
    workers.work()
    return dict(api.get(f"/v1/forget-requests/{request['id']}").json())
