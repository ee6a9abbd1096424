"""A requester's own proof, end to end through HTTP and the command line's checks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.domain.errors import VerificationError
from app.evidence.certificates.verification import verify
from app.services import Services
from tests.support.digits import DATASET, digits_parquet, model
from tests.support.trust import trust_in


@pytest.fixture
def trained(api: TestClient, work: Callable[[], None]) -> TestClient:
    api.post("/v1/datasets", json=DATASET)
    api.put("/v1/datasets/digits/records", content=digits_parquet(100))
    assert api.post("/v1/models", json=model()).status_code == 201
    work()
    return api


def forget(api: TestClient, **ids: list[str]) -> tuple[dict[str, Any], bytes]:
    answer = api.post("/v1/forget-requests", json={"dataset": "digits", **ids})
    assert answer.status_code in (201, 202), answer.text
    return answer.json(), json.dumps(answer.json() | ids).encode()


def check(
    api: TestClient, services: Services, request: str, receipt: bytes, tmp_path: Path, **query: int
) -> dict[str, Any]:
    (certificate,) = api.get(f"/v1/forget-requests/{request}/certificates", params=query).json()
    weights = tmp_path / "weights"
    weights.write_bytes(api.get("/v1/models/digits-mlp/certified/weights").content)
    return verify(
        bundle=json.dumps(certificate["bundle"]).encode(),
        weights=weights,
        trusted=api.get("/.well-known/expunge-keys.json").content,
        receipt=receipt,
    )


def test_requests_are_accounted_for_and_only_by_their_own_receipts(
    trained: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    mixed, its_receipt = forget(
        trained, subject_ids=["subject-3"], record_ids=["record-31", "record-70", "record-71"]
    )
    other, other_receipt = forget(trained, subject_ids=["subject-4"])
    work()
    predicate = check(trained, services, mixed["id"], its_receipt, tmp_path)
    assert check(trained, services, other["id"], other_receipt, tmp_path) == predicate
    forgotten = predicate["forgotten"]
    assert forgotten["records"] + forgotten["excluded_records"] == 22
    for request, receipt in ((mixed, other_receipt), (other, its_receipt)):
        with pytest.raises(VerificationError, match="receipt"):
            check(trained, services, request["id"], receipt, tmp_path)


def test_a_later_certificate_tells_nothing_new_about_the_first_request(
    trained: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    first, _ = forget(trained, subject_ids=["subject-3"])
    work()
    (before,) = trained.get(f"/v1/forget-requests/{first['id']}/certificates").json()
    forget(trained, subject_ids=["subject-4"])
    work()
    (after,) = trained.get(f"/v1/forget-requests/{first['id']}/certificates").json()
    assert after["bundle"]["request"] == before["bundle"]["request"]
    assert after["bundle"]["envelope"] == before["bundle"]["envelope"]
    assert after["bundle"]["log"]["index"] == before["bundle"]["log"]["index"]


def test_held_out_records_are_excluded_and_say_so(
    trained: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    request, receipt = forget(trained, subject_ids=[f"subject-{n}" for n in range(5, 10)])
    work()
    predicate = check(trained, services, request["id"], receipt, tmp_path)
    assert predicate["forgotten"]["excluded_records"] > 0


def test_the_log_is_shown_to_have_grown(
    trained: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    old = trained.get("/v1/log/checkpoint").content
    size = int(old.split(b"\n")[1])
    request, receipt = forget(trained, subject_ids=["subject-3"])
    work()
    (certificate,) = trained.get(
        f"/v1/forget-requests/{request['id']}/certificates", params={"since": size}
    ).json()
    weights = tmp_path / "weights"
    weights.write_bytes(trained.get("/v1/models/digits-mlp/certified/weights").content)
    arguments: dict[str, Any] = {
        "weights": weights,
        "trusted": trust_in(services),
        "consistent_with": old,
        "receipt": receipt,
    }
    assert verify(bundle=json.dumps(certificate["bundle"]).encode(), **arguments)
    without = trained.get(f"/v1/certificates/{certificate['certificate']}").json()
    with pytest.raises(VerificationError, match="history"):
        verify(bundle=json.dumps(without).encode(), **arguments)
    vast = {"since": size + 10**6}
    answer = trained.get(f"/v1/certificates/{certificate['certificate']}", params=vast)
    assert answer.status_code == 422


def test_who_asks_again_for_what_is_forgotten_gets_a_proof_of_their_own(
    trained: TestClient, services: Services, work: Callable[[], None], tmp_path: Path
) -> None:
    first, first_receipt = forget(trained, subject_ids=["subject-3"])
    work()
    later, later_receipt = forget(trained, subject_ids=["subject-3"], record_ids=["record-31"])
    other, other_receipt = forget(trained, subject_ids=["subject-1"])  # not forgotten yet
    assert later["state"] in ("certified", "completed")
    before = check(trained, services, first["id"], first_receipt, tmp_path)
    again = check(trained, services, later["id"], later_receipt, tmp_path)
    assert again["guarantee"] == before["guarantee"]
    assert again["forgotten"]["records"] == before["forgotten"]["records"]
    assert again["forgotten"]["requests"] == before["forgotten"]["requests"] + 1
    work()
    predicate = check(trained, services, other["id"], other_receipt, tmp_path)
    assert predicate["forgotten"]["requests"] == 3
