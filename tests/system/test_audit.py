"""The optional audit end to end through HTTP: two figures on the certificate, or none."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sklearn.datasets import load_digits

from app.evidence.certificates.verification import verify
from app.registry.datasets.files import record_table, to_parquet
from app.services import Services
from tests.support.digits import DATASET, RECORDS_PER_SUBJECT, digits_parquet, model
from tests.support.trust import trust_in


def unlearnable_digits(records: int = 300) -> bytes:
    """Return digits whose labels are made up: a network can only learn them by heart."""
    images, _ = load_digits(return_X_y=True)
    return to_parquet(
        record_table(
            record_ids=[f"record-{i}" for i in range(records)],
            subject_ids=[f"subject-{i // RECORDS_PER_SUBJECT}" for i in range(records)],
            labels=np.random.default_rng(0).integers(0, 10, records),
            features=images[:records].reshape(-1, 8, 8).astype(np.uint8),
        )
    )


@pytest.fixture
def forget(
    api: TestClient, services: Services, work: Callable[[], None], tmp_path
) -> Callable[..., list[dict]]:
    """Train a model under a policy, forget a subject; return both certificates' evaluations."""

    def forget(**policy: object) -> list[dict]:
        recipe = {"epochs": 60, "batch_size": 16, "learning_rate": 0.1, "held_out_fraction": 0.3}
        api.post("/v1/datasets", json=DATASET)
        api.put("/v1/datasets/digits/records", content=unlearnable_digits())
        body = model(first_release="as_trained", **policy) | {
            "architecture": {"name": "mlp", "options": {"hidden": [64]}},
            "recipe": recipe,
        }
        assert api.post("/v1/models", json=body).status_code == 201
        work()
        evaluations = [api.get("/v1/models/digits-mlp").json()["certified"]["evaluation"]]
        subjects = [f"subject-{i}" for i in range(8)]
        answer = api.post(
            "/v1/forget-requests", json={"dataset": "digits", "subject_ids": subjects}
        )
        work()
        request = api.get(answer.headers["Location"]).json()
        assert request["state"] == "completed", request["failure_reason"]
        (certificate,) = api.get(f"/v1/forget-requests/{request['id']}/certificates").json()
        weights = tmp_path / "weights"
        weights.write_bytes(api.get("/v1/models/digits-mlp/certified/weights").content)
        predicate = verify(
            bundle=json.dumps(certificate["bundle"]).encode(),
            weights=weights,
            trusted=trust_in(services),
        )
        return [*evaluations, predicate["evaluation"]]

    return forget


@pytest.mark.parametrize("mechanism", ["gradient_clipping", "retraining"])
def test_both_figures_are_on_the_certificate(forget: Callable, mechanism: str) -> None:
    before, after = forget(audit=True, mechanism=mechanism)

    assert set(before["audit"]) == {
        "attack",
        "not_measured",
        "forgotten_records",
        "held_out_records",
    }
    assert before["audit"]["forgotten_records"] == 0
    audit = after["audit"]
    assert after["outside_the_guarantee"]
    assert audit["attack"] == "loss threshold"
    assert audit["depends_on_uncertified_weights"] is True
    assert 0 < audit["forgotten_records"] <= 80
    assert audit["held_out_records"] == after["held_out_records"] > 0
    assert "outside the guarantee" in audit["note"]
    for name in ("auc_before", "auc_after"):
        assert 0 <= audit[name] <= 1
        assert round(audit[name], 3) == audit[name]
    # Made-up labels can only be memorised. About 60 records against 60 scatter by 0.05.
    assert audit["auc_before"] > 0.8
    assert 0.2 < audit["auc_after"] < 0.8
    assert audit["auc_before"] > audit["auc_after"] + 0.1


def test_without_the_policy_there_is_no_audit(forget: Callable) -> None:
    for evaluation in forget():
        assert "audit" not in evaluation
        assert evaluation["held_out_records"] > 0


def test_without_held_out_records_the_certificate_says_why(
    api: TestClient, work: Callable[[], None]
) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(60))
    body = model(audit=True)
    body["recipe"] = body["recipe"] | {"held_out_fraction": 0.0}
    api.post("/v1/models", json=body)
    work()
    api.post("/v1/forget-requests", json={"dataset": "digits", "subject_ids": ["subject-1"]})
    work()
    evaluation = api.get("/v1/models/digits-mlp").json()["certified"]["evaluation"]
    assert "raise held_out_fraction" in evaluation["audit"]["not_measured"]
    assert evaluation["audit"]["forgotten_records"] == 10
