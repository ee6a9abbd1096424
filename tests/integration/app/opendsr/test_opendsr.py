"""OpenDSR as a controller drives it: discovery, requests, status, cancellation, signatures."""

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier
from uuid import uuid4

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.cli.application import create_app
from app.delivery.callbacks.deliverer import Deliverer, Terms
from app.delivery.callbacks.posting import Poster
from app.delivery.callbacks.tables import CallbackEndpointRow, CallbackEventRow
from app.domain.states import Scope
from app.ledger import repository
from app.ledger.tables import ForgetRequestRow, SubjectRequestRow
from app.registry.datasets.tables import DatasetRow
from app.runtime.settings import Settings
from app.services import Services
from tests.integration.app.delivery.callbacks.conftest import settle
from tests.support.dumps import everything_in_postgres
from tests.support.patience import PATIENCE_S
from tests.support.receiver import Receiver
from tests.support.workshop import DATASET, Workshop

BASE = "/opendsr/v2"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"callback_allow_private": True})


@pytest.fixture
def certificate(api: TestClient) -> x509.Certificate:
    """The processor's certificate, found as a controller finds it."""
    discovered = api.get(f"{BASE}/discovery", headers={"Authorization": ""}).json()
    path = httpx.URL(discovered["processor_certificate"]).path
    answer = api.get(path, headers={"Authorization": ""})
    assert answer.headers["content-type"].startswith("application/x-pem-file")
    return x509.load_pem_x509_certificate(answer.content)


def body(*subjects: str, **changes: object) -> dict[str, object]:
    identities = [
        {
            "identity_type": "controller_customer_id",
            "identity_value": subject,
            "identity_format": "raw",
        }
        for subject in subjects
    ]
    return {
        "regulation": "gdpr",
        "subject_request_id": str(uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": "2026-01-02T15:00:00Z",
        "subject_identities": identities,
        "api_version": "2.0",
        **changes,
    }


def verify(certificate: x509.Certificate, headers: dict[str, str], content: bytes) -> None:
    """Check a signature as section 8.8 says: the domain, then the raw body."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = [*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.IPAddress)]
    assert headers["x-opendsr-processor-domain"] in [str(name) for name in known]
    signature = base64.b64decode(headers["x-opendsr-signature"], validate=True)
    certificate.public_key().verify(signature, content, PKCS1v15(), SHA256())


def submit(api: TestClient, *subjects: str, **changes: object) -> dict[str, object]:
    answer = api.post(f"{BASE}/requests", json=body(*subjects, **changes))
    assert answer.status_code == 201, answer.text
    return answer.json()


def status(api: TestClient, receipt: dict[str, object]) -> str:
    answer = api.get(f"{BASE}/requests/{receipt['subject_request_id']}")
    assert answer.status_code == 200
    return answer.json()["request_status"]


@pytest.fixture
def trained(workshop: Workshop) -> Workshop:
    workshop.train()
    return workshop


def test_discovery_says_what_is_supported(api: TestClient) -> None:
    assert api.get(f"{BASE}/discovery").json() == {
        "api_version": "2.0",
        "supported_identities": [
            {"identity_type": "controller_customer_id", "identity_format": "raw"}
        ],
        "supported_subject_request_types": ["erasure"],
        "processor_certificate": "http://127.0.0.1:8100/opendsr/v2/certificate.pem",
    }


def test_a_request_from_receipt_to_completion(
    api: TestClient, trained: Workshop, certificate: x509.Certificate
) -> None:
    sent = json.dumps(body("subject-1")).encode()
    answer = api.post(
        f"{BASE}/requests", content=sent, headers={"Content-Type": "application/json"}
    )

    assert answer.status_code == 201
    verify(certificate, dict(answer.headers), answer.content)
    receipt = answer.json()
    assert receipt["controller_id"].startswith("key_")
    assert base64.b64decode(receipt["encoded_request"]) == sent
    assert receipt["subject_request_id"] == json.loads(sent)["subject_request_id"]
    expected = datetime.fromisoformat(receipt["expected_completion_time"])
    assert expected > datetime.fromisoformat(receipt["received_time"])

    shown = api.get(f"{BASE}/requests/{receipt['subject_request_id']}")
    verify(certificate, dict(shown.headers), shown.content)
    assert shown.json() == {
        "controller_id": receipt["controller_id"],
        "expected_completion_time": shown.json()["expected_completion_time"],
        "subject_request_id": receipt["subject_request_id"],
        "request_status": "pending",
        "api_version": "2.0",
        "results_url": None,
    }
    trained.dispatch()
    held = trained.begun()
    assert status(api, receipt) == "in_progress"
    trained.publish(held)
    assert status(api, receipt) == "in_progress"
    trained.services.clean_up()
    assert status(api, receipt) == "completed"
    with trained.transaction() as session:
        (request,) = session.scalars(select(ForgetRequestRow))
        assert (request.state, request.record_count) == ("completed", 4)
        assert all(r.erased_at is not None for r in repository.records_of(session, request.id))


def test_a_signature_is_verified_by_openssl(
    api: TestClient, workshop: Workshop, certificate: x509.Certificate, tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    answer = api.post(f"{BASE}/requests", json=body("subject-1"))
    (tmp_path / "body").write_bytes(answer.content)
    (tmp_path / "signature").write_bytes(base64.b64decode(answer.headers["x-opendsr-signature"]))
    (tmp_path / "certificate.pem").write_text(api.get(f"{BASE}/certificate.pem").text)
    commands = (
        "openssl x509 -in certificate.pem -pubkey -noout > key.pem"
        " && openssl dgst -sha256 -verify key.pem -signature signature body"
    )

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", commands], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    assert "Verified OK" in run().stdout
    (tmp_path / "body").write_bytes(answer.content.replace(b"T", b"U", 1))
    assert run().returncode != 0


def test_the_same_request_again_has_the_same_answer(api: TestClient, trained: Workshop) -> None:
    demand = body("subject-1")
    first = api.post(f"{BASE}/requests", json=demand)
    again = api.post(f"{BASE}/requests", json=demand)
    assert (again.status_code, again.json()) == (201, first.json())
    with trained.transaction() as session:
        assert len(session.scalars(select(ForgetRequestRow)).all()) == 1

    other = api.post(f"{BASE}/requests", json={**demand, "regulation": "ccpa"})
    assert other.status_code == 400
    assert "used before" in other.json()["error"]["message"]


def test_the_same_request_several_times_at_once_has_one_answer(
    api: TestClient, trained: Workshop
) -> None:
    start = Barrier(4)

    def send(demand: dict[str, object]) -> httpx.Response:
        start.wait(PATIENCE_S)
        return api.post(f"{BASE}/requests", json=demand)

    for subject in ("subject-1", "subject-2", "nobody"):
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(send, [body(subject)] * 4))
        assert [answer.status_code for answer in answers] == [201] * 4
        assert len({answer.content for answer in answers}) == 1
    with trained.transaction() as session:
        assert len(session.scalars(select(SubjectRequestRow)).all()) == 3


def test_requests_of_two_controllers_do_not_meet(
    workshop: Workshop, caller_of: Callable[..., TestClient]
) -> None:
    one, two = (caller_of(Scope.FORGET_WRITE, Scope.FORGET_READ) for _ in range(2))
    demand = body("subject-1")
    first = one.post(f"{BASE}/requests", json=demand).json()
    assert two.get(f"{BASE}/requests/{demand['subject_request_id']}").status_code == 404
    assert two.delete(f"{BASE}/requests/{demand['subject_request_id']}").status_code == 404
    second = two.post(f"{BASE}/requests", json=demand)
    assert second.status_code == 201
    assert second.json()["controller_id"] != first["controller_id"]


def test_a_person_is_forgotten_by_every_dataset_that_knows_them(
    api: TestClient, trained: Workshop
) -> None:
    second_dataset(trained)
    receipt = submit(api, "subject-1", "person-nobody-knows")
    with trained.transaction() as session:
        requests = session.scalars(select(ForgetRequestRow)).all()
        assert sorted(session.get_one(DatasetRow, r.dataset_id).name for r in requests) == [
            "more",
            DATASET,
        ]
        assert {r.subject_request_id for r in requests} == {
            session.scalars(select(SubjectRequestRow.id)).one()
        }
    # One of the two datasets has no model, so it is done at once; the other is not.
    assert status(api, receipt) == "in_progress"
    trained.unlearn()
    trained.services.clean_up()
    assert status(api, receipt) == "completed"


def second_dataset(workshop: Workshop) -> None:
    from app.registry.datasets.service import define_dataset
    from tests.support.arrays import array_schema
    from tests.support.workshop import records_parquet

    schema = array_schema(2)
    with workshop.transaction() as session:
        define_dataset(session, name="more", schema=schema)
    workshop.services.records.push("more", records_parquet(8))


def test_the_extension_chooses_datasets(api: TestClient, workshop: Workshop) -> None:
    second_dataset(workshop)
    ours = {"127.0.0.1": {"datasets": ["more"]}, "other.example": {"anything": 1}}
    submit(api, "subject-1", extensions=ours)
    with workshop.transaction() as session:
        (request,) = session.scalars(select(ForgetRequestRow))
        assert session.get_one(DatasetRow, request.dataset_id).name == "more"

    for wrong, code in (({"datasets": "more"}, 400), ({"x": 1}, 400), ({"datasets": ["no"]}, 404)):
        demand = body("subject-1", extensions={"127.0.0.1": wrong})
        assert api.post(f"{BASE}/requests", json=demand).status_code == code


def test_an_operator_chooses_datasets_and_identities(
    settings: Settings, workshop: Workshop, admin_key: str
) -> None:
    from app.services import open_services

    second_dataset(workshop)
    chosen = {"opendsr_datasets": ("more",), "opendsr_identity_types": ("email",)}
    services = open_services(settings.model_copy(update=chosen))
    with TestClient(
        create_app(services), headers={"Authorization": f"Bearer {admin_key}"}
    ) as client:
        found = client.get(f"{BASE}/discovery").json()["supported_identities"]
        assert found == [{"identity_type": "email", "identity_format": "raw"}]
        identity = {"identity_type": "email", "identity_value": "subject-1"}
        demand = body(subject_identities=[{**identity, "identity_format": "raw"}])
        assert client.post(f"{BASE}/requests", json=demand).status_code == 201
        elsewhere = {**demand, "extensions": {"127.0.0.1": {"datasets": [DATASET]}}}
        assert client.post(f"{BASE}/requests", json=elsewhere).status_code == 400
    services.database.dispose()
    with workshop.transaction() as session:
        (request,) = session.scalars(select(ForgetRequestRow))
        assert session.get_one(DatasetRow, request.dataset_id).name == "more"


def test_a_person_whom_nobody_knows_is_forgotten_already(
    api: TestClient, workshop: Workshop
) -> None:
    receipt = submit(api, "person-nobody-knows")
    assert receipt["expected_completion_time"] == receipt["received_time"]
    assert status(api, receipt) == "completed"
    assert "person-nobody-knows" not in everything_in_postgres(workshop.services.database.engine)


def test_a_pending_request_is_cancelled_and_its_records_stay_forgotten(
    api: TestClient, trained: Workshop, certificate: x509.Certificate
) -> None:
    receipt = submit(api, "subject-1")
    path = f"{BASE}/requests/{receipt['subject_request_id']}"

    answer = api.delete(path)

    assert answer.status_code == 202
    verify(certificate, dict(answer.headers), answer.content)
    assert set(answer.json()) == {
        "controller_id",
        "received_time",
        "subject_request_id",
        "api_version",
    }
    assert status(api, receipt) == "cancelled"
    with trained.transaction() as session:
        assert trained.record(session, "record-4").forgotten_epoch is not None
    again = api.delete(path)
    assert (again.status_code, again.json()["error"]["code"]) == (409, 409)
    verify(certificate, dict(again.headers), again.content)


def test_a_forget_request_of_the_same_name_is_not_taken_for_its_own(
    api: TestClient, trained: Workshop
) -> None:
    asked = body("subject-1")
    name = f"{asked['subject_request_id']}/{DATASET}"
    forget = {"dataset": DATASET, "subject_ids": ["subject-1"], "external_id": name}
    assert api.post("/v1/forget-requests", json=forget).json()["state"] == "accepted"

    answer = api.post(f"{BASE}/requests", json=asked)

    assert answer.status_code == 400
    assert "used before" in answer.json()["error"]["message"]
    path = f"{BASE}/requests/{asked['subject_request_id']}"
    assert api.get(path).status_code == 404


def test_what_has_begun_is_not_cancelled(api: TestClient, trained: Workshop) -> None:
    second_dataset(trained)
    receipt = submit(api, "subject-1")
    assert api.delete(f"{BASE}/requests/{receipt['subject_request_id']}").status_code == 409
    assert status(api, receipt) == "in_progress"
    nobody = submit(api, "nobody")
    assert api.delete(f"{BASE}/requests/{nobody['subject_request_id']}").status_code == 409
    assert api.get(f"{BASE}/requests/{uuid4()}").status_code == 404


def test_failure_is_in_progress_until_somebody_tries_again(
    api: TestClient, trained: Workshop
) -> None:
    receipt = submit(api, "subject-1")
    trained.dispatch()
    held = trained.begun()
    trained.give_up(held)
    assert status(api, receipt) == "in_progress"
    with trained.transaction() as session:
        request = session.scalars(select(ForgetRequestRow)).one()
        trained.services.forget_requests.retry(session, request.id)
    assert status(api, receipt) == "pending"


FAULTS = {
    "access": ({"subject_request_type": "access"}, "only erasure"),
    "portability": ({"subject_request_type": "portability"}, "only erasure"),
    "version": ({"api_version": "1.0"}, "only version 2.0 is supported"),
    "regulation": ({"regulation": "lgpd"}, "regulation"),
    "no uuid": ({"subject_request_id": "4711"}, "subject_request_id"),
    "upper case": ({"subject_request_id": str(uuid4()).upper()}, "subject_request_id"),
    "uuid of version 1": (
        {"subject_request_id": "a7551968-d5d6-14b2-9831-815ac9017798"},
        "subject_request_id",
    ),
    "no time": ({"submitted_time": "yesterday"}, "submitted_time"),
    "no time zone": ({"submitted_time": "2026-01-02T15:00:00"}, "submitted_time"),
    "nobody": ({"subject_identities": []}, "at least one"),
    "email": (
        {
            "subject_identities": [
                {
                    "identity_type": "email",
                    "identity_value": "jo@sesame.example",
                    "identity_format": "raw",
                }
            ]
        },
        "not supported",
    ),
    "hashed": (
        {
            "subject_identities": [
                {
                    "identity_type": "controller_customer_id",
                    "identity_value": "sesame",
                    "identity_format": "sha256",
                }
            ]
        },
        "must be raw",
    ),
    "bad callback": ({"status_callback_urls": ["ftp://sesame.example"]}, "status_callback_urls"),
}


def test_faults_answer_400_in_the_specifications_words(
    api: TestClient, workshop: Workshop, certificate: x509.Certificate, subtests: pytest.Subtests
) -> None:
    for fault, (changes, told) in FAULTS.items():
        with subtests.test(fault=fault):
            answer = api.post(f"{BASE}/requests", json=body("subject-1", **changes))

            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == 400
            assert told in error["message"]
            assert all(set(e) == {"domain", "reason", "message"} for e in error["errors"])
            assert "sesame" not in answer.text
            verify(certificate, dict(answer.headers), answer.content)
            with workshop.transaction() as session:
                assert session.scalars(select(SubjectRequestRow)).all() == []


def test_members_of_other_versions_and_processors_are_ignored(
    api: TestClient, workshop: Workshop
) -> None:
    submit(api, "subject-1", group_id="g", extensions={"opendsr.mparticle.com": {"mpids": [1]}})


# Callbacks


@pytest.fixture
def deliverer(services: Services) -> Deliverer:
    return Deliverer(
        services.database,
        services.callbacks.keys,
        Poster(timeout_s=30.0, allow_private=True),
        lambda: services.processor_signer,
        Terms(),
    )


def test_callbacks_are_in_the_specifications_words_and_signed(
    api: TestClient,
    trained: Workshop,
    certificate: x509.Certificate,
    receiver: Receiver,
    deliverer: Deliverer,
) -> None:
    receipt = submit(api, "subject-1", status_callback_urls=[receiver.url])
    trained.unlearn()
    trained.services.clean_up()
    settle(deliverer)

    told = [json.loads(received.body) for received in receiver.received]
    assert [t["request_status"] for t in told] == ["pending", "in_progress", "completed"]
    for received, content in zip(receiver.received, told, strict=True):
        verify(certificate, received.headers, received.body)
        assert content["controller_id"] == receipt["controller_id"]
        assert content["subject_request_id"] == receipt["subject_request_id"]
        assert content["status_callback_url"] == receiver.url
        assert content["expected_completion_time"]
        assert b"subject-1" not in received.body
    deliverer.close_served()
    with trained.transaction() as session:
        assert session.scalars(select(CallbackEndpointRow.state)).all() == ["closed"]


def test_two_datasets_are_told_of_as_one_request(
    api: TestClient, trained: Workshop, receiver: Receiver, deliverer: Deliverer
) -> None:
    second_dataset(trained)
    submit(api, "subject-1", status_callback_urls=[receiver.url])
    trained.unlearn()
    trained.services.clean_up()
    settle(deliverer)
    told = [json.loads(received.body)["request_status"] for received in receiver.received]
    assert told == ["in_progress", "completed"]


def test_a_replay_asks_for_no_second_callback(
    api: TestClient, workshop: Workshop, receiver: Receiver
) -> None:
    demand = body("subject-1", status_callback_urls=[receiver.url])
    for _ in range(2):
        assert api.post(f"{BASE}/requests", json=demand).status_code == 201
    workshop.services.clean_up()
    with workshop.transaction() as session:
        assert len(session.scalars(select(CallbackEndpointRow)).all()) == 1
        types = session.scalars(
            select(CallbackEventRow.type).order_by(CallbackEventRow.sequence)
        ).all()
    assert types == ["subject_request.in_progress", "subject_request.completed"]
