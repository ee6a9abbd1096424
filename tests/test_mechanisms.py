"""Each mechanism end to end through HTTP: train, forget twice, download, verify."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.accounting import catalogue
from app.certificates.verification import verify
from app.services import Services
from tests.support.digits import DATASET, digits_parquet, model

SCHEDULES = {
    "learning_rate": [0.2, 0.15, 0.1, 0.1, 0.05, 0.05],
    "noise_std": [1.5, 1.4, 1.3, 1.2, 1.1, 1.0],
}


@pytest.mark.parametrize(
    ("mechanism", "kind"),
    [
        ("gradient_clipping", "gaussian"),
        ("model_clipping", "point"),
        ("output_perturbation", "gaussian"),
        ("retraining", "exact"),
    ],
)
def test_a_mechanism_forgets_two_batches_and_each_certificate_covers_the_union(
    mechanism: str,
    kind: str,
    api: TestClient,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    assert api.post("/v1/models", json=model(mechanism=mechanism)).status_code == 201
    work()
    covered = []
    for subject in ("subject-3", "subject-4"):
        predicate = _forget(subject, api, services, work, tmp_path)
        assert predicate["mechanism"]["name"] == mechanism
        assert predicate["guarantee"]["kind"] == kind
        assert predicate["guarantee"]["epsilon"] == pytest.approx(0.0 if kind == "exact" else 1.0)
        covered.append(predicate["forgotten"]["records"])
    assert 0 < covered[0] < covered[1] <= 20


def test_schedules_go_from_the_policy_to_a_certificate_that_lists_the_steps_taken(
    api: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())
    answer = api.post("/v1/models", json=model(parameters=SCHEDULES))
    assert answer.status_code == 201, answer.text
    assert api.get("/v1/models/digits-mlp").json()["policy"]["parameters"] == SCHEDULES
    work()
    for subject in ("subject-3", "subject-4"):
        predicate = _forget(subject, api, services, work, tmp_path)
        taken = predicate["mechanism"]["parameters"]
        # Five of the six steps meet the target: the sixth is not taken.
        assert taken["steps"] == 5
        assert {name: taken[name] for name in SCHEDULES} == {
            name: schedule[:5] for name, schedule in SCHEDULES.items()
        }
        assert len(taken["weight_decay"]) == 5
        guarantee = catalogue.account("gradient_clipping", taken)
        assert guarantee.meets(epsilon=1.0, delta=1e-5)
        assert predicate["guarantee"]["mu"] == guarantee.mu


def _forget(
    subject: str,
    api: TestClient,
    services: Services,
    work: Callable[[], None],
    tmp_path: Path,
) -> dict:
    """Forget a subject, download, verify, and return what the certificate says."""
    answer = api.post("/v1/forget-requests", json={"dataset": "digits", "subject_ids": [subject]})
    work()
    request = api.get(answer.headers["Location"]).json()
    assert request["state"] == "completed", request["failure_reason"]
    weights = tmp_path / "weights"
    weights.write_bytes(api.get("/v1/models/digits-mlp/certified/weights").content)
    (certificate,) = api.get(f"/v1/forget-requests/{request['id']}/certificates").json()
    return verify(
        bundle=json.dumps(certificate["bundle"]).encode(),
        weights=weights,
        key_pem=services.signer.public_key_pem.encode(),
    )


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"mechanism": "tracked_release"}, "mechanism must be"),
        ({"adaptive": True}, "adaptive"),
        ({"mechanism": "retraining", "budget_epochs": 1.0}, "budget_epochs"),
        ({"mechanism": "model_clipping", "budget_epochs": 0.5}, "budget_epochs"),
        ({"parameters": {**SCHEDULES, "steps": 5}}, "6 numbers for 5 steps"),
        ({"parameters": {"noise_std": [1.0, 0.1]}}, "leave it out"),
        ({"parameters": {"noise_std": []}}, "a list of 1 to"),
        ({"mechanism": "model_clipping", "parameters": {"noise_std": [1.0]}}, "one number here"),
        ({"mechanism": "output_perturbation", "parameters": SCHEDULES}, "one number here"),
    ],
)
def test_a_policy_that_no_mechanism_can_keep_is_refused_with_the_reason(
    policy: dict, reason: str, api: TestClient
) -> None:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet())

    answer = api.post("/v1/models", json=model(**policy))

    assert answer.status_code == 422
    assert reason in answer.json()["detail"]
