"""The main job through HTTP: push, train, certify, forget, download, verify."""

import json
from collections.abc import Callable
from pathlib import Path

from fastapi.testclient import TestClient

from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.verification import verify
from app.services import Services
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.trust import trust_in


def test_a_person_is_forgotten_and_the_proof_verifies_offline(
    api: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    assert api.post("/v1/datasets", json=DATASET).status_code == 201
    assert api.put("/v1/datasets/digits/records", content=digits_parquet()).json()["added"] == 300
    assert api.post("/v1/models", json=model()).status_code == 201
    work()
    assert api.get("/v1/models/digits-mlp/certified").json()["number"] == 1

    answer = api.post(
        "/v1/forget-requests", json={"dataset": "digits", "subject_ids": ["subject-3"]}
    )
    assert answer.status_code == 202
    work()

    request = api.get(answer.headers["Location"]).json()
    assert request["state"] == "completed"
    assert [o["state"] for o in request["obligations"]] == ["certified"]
    assert api.get("/v1/models/digits-mlp/versions/1/weights").status_code == 410
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(api.get("/v1/models/digits-mlp/certified/weights").content)
    (certificate,) = api.get(f"/v1/forget-requests/{request['id']}/certificates").json()
    predicate = verify(
        bundle=json.dumps(certificate["bundle"]).encode(),
        weights=weights,
        trusted=trust_in(services),
    )
    assert predicate["guarantee"]["epsilon"] <= 1.0
    touched = statement_of(json.dumps(certificate["bundle"]["envelope"]))["predicate"]["forgotten"]
    assert touched["requests"] == 1
    assert 0 < touched["records"] <= 10
    assert api.get("/v1/datasets/digits").json()["erased"] == 10
