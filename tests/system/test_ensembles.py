"""Ensembles through HTTP: receipts show members, and older certificates what was trained anew."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.domain.errors import VerificationError
from app.evidence.certificates.verification import verify
from tests.support.digits import DATASET, digits_parquet, model

MEMBERS = 4


@pytest.fixture
def trained(api: TestClient, work: Callable[[], None]) -> TestClient:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(200))
    network = model(mechanism="sharded_retraining", forget="retrain")
    architecture = {"name": "ensemble", "members": MEMBERS, "of": network["architecture"]}
    answer = api.post("/v1/models", json=network | {"architecture": architecture})
    assert answer.status_code == 201, answer.text
    work()
    return api


def forget(api: TestClient, work: Callable[[], None], *subjects: str) -> tuple[str, bytes]:
    ids = {"subject_ids": list(subjects)}
    answer = api.post("/v1/forget-requests", json={"dataset": "digits", **ids})
    work()
    return answer.json()["id"], json.dumps(answer.json() | ids).encode()


def bundle_of(api: TestClient, request: str) -> dict[str, Any]:
    (certificate,) = api.get(f"/v1/forget-requests/{request}/certificates").json()
    bundle: dict[str, Any] = certificate["bundle"]
    return bundle


def checked(
    api: TestClient, tmp_path: Path, bundle: dict[str, Any], **more: bytes
) -> tuple[dict[str, Any], dict[str, str]]:
    """Verify; return what the certificate says, and what each step found."""
    weights, found = tmp_path / "weights", {}
    weights.write_bytes(api.get("/v1/models/digits-mlp/certified/weights").content)
    stated = verify(
        bundle=json.dumps(bundle).encode(),
        weights=weights,
        trusted=api.get("/.well-known/expunge-keys.json").content,
        report=lambda step: found.update({step.name: step.finding}),
        **more,
    )
    return stated, found


def statement_of(bundle: dict[str, Any]) -> dict[str, Any]:
    predicate: dict[str, Any] = json.loads(base64.b64decode(bundle["envelope"]["payload"]))
    return predicate["predicate"]


def test_a_receipt_shows_the_members_and_the_older_certificate_that_they_were_trained_anew(
    trained: TestClient, work: Callable[[], None], tmp_path: Path
) -> None:
    first, _ = forget(trained, work, "subject-3")
    older = bundle_of(trained, first)
    second, receipt = forget(trained, work, "subject-5")
    bundle = bundle_of(trained, second)
    previous = json.dumps(older).encode()
    stated, found = checked(trained, tmp_path, bundle, receipt=receipt, previous=previous)
    (concerned,) = set(bundle["request"]["covered"]["members"])
    assert found["receipt"].endswith(f"they belonged to members {concerned}")
    assert stated["members"][concerned]["trained_in"] == 3
    for member, (now, before) in enumerate(
        zip(stated["members"], statement_of(older)["members"], strict=True)
    ):
        assert (now == before) == (member != concerned)


def test_a_bundle_cannot_lie_about_the_member(
    trained: TestClient, work: Callable[[], None], tmp_path: Path
) -> None:
    request, receipt = forget(trained, work, "subject-3")
    for change in (lambda members: [(each + 1) % MEMBERS for each in members], lambda _: None):
        bundle = bundle_of(trained, request)
        covered = bundle["request"]["covered"]
        covered["members"] = change(covered["members"])
        if covered["members"] is None:
            del covered["members"]
        with pytest.raises(VerificationError, match=r"receipt|not under the certificate"):
            checked(trained, tmp_path, bundle, receipt=receipt)
