"""Generated calls of every operation: each answer is one that OpenAPI announces.

All checks of schemathesis, few examples of each operation; ``docs/development.md`` tells how to run
thousands against a served instance.
"""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation
from sqlalchemy import select

from app.cli.application import create_app
from app.delivery.callbacks.tables import CallbackEventRow
from app.evidence.certificates.tables import CertificateRow
from app.ledger.subjects.requests import NewSubjectRequest
from app.ledger.tables import ForgetRequestRow, SubjectRequestRow
from app.services import Services
from tests.support import schemathesis_hooks  # noqa: F401 - registers how files are sent
from tests.support.workshop import DATASET, Workshop

EXAMPLES = 6


@pytest.fixture
def operations(services: Services, workshop: Workshop) -> list[APIOperation]:
    """All operations of an application whose model ``model`` has released and forgotten."""
    workshop.train()
    workshop.forget(workshop.split()[0][0], status_callback_urls=["https://privacy.example/told"])
    workshop.unlearn()
    _ask_for_a_subject(services, workshop)
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(services))
    found = [operation.ok() for operation in schema.get_all_operations()]
    assert len(found) > 40
    return found


@pytest.fixture
def headers(admin_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {admin_key}"}


def _ask_for_a_subject(services: Services, workshop: Workshop) -> None:
    asked = NewSubjectRequest(
        subject_request_id="a7551968-d5d6-44b2-9831-815ac9017798",
        subject_ids=["subject-1"],
        datasets=[DATASET],
        regulation="gdpr",
        submitted_at=datetime.now(UTC),
        status_callback_urls=[],
    )
    with services.database.transaction() as session:
        services.subject_requests.submit(session, asked, api_key_id=workshop.key_id)


@pytest.mark.slow  # it tries every operation many times
def test_answers_are_as_announced(operations: list[APIOperation], headers: dict[str, str]) -> None:
    for operation in operations:
        _call(operation, headers)


@pytest.mark.slow
def test_answers_to_invalid_calls_are_as_announced(
    operations: list[APIOperation], headers: dict[str, str]
) -> None:
    called = 0
    for operation in operations:
        with suppress(Unsatisfiable):  # nothing that it takes can be invalid
            _call(operation, headers, generation_mode=schemathesis.GenerationMode.NEGATIVE)
            called += 1
    assert called > 20


@pytest.mark.slow
def test_answers_about_what_exists_are_as_announced(
    operations: list[APIOperation], headers: dict[str, str], workshop: Workshop, services: Services
) -> None:
    with services.database.transaction() as session:
        request, certificate, callback = (
            session.scalars(select(table.id)).first()
            for table in (ForgetRequestRow, CertificateRow, CallbackEventRow)
        )
        subject_request = session.scalars(select(SubjectRequestRow.subject_request_id)).one()
    assert callback is not None
    known = {
        "request_id": request,
        "certificate_id": certificate,
        "run_id": workshop.runs()[-1].id,
        "key_id": workshop.key_id,
        "callback_id": callback,
        "subject_request_id": subject_request,
        "number": 2,
        "index": 3,
    }
    for operation in operations:
        names = {parameter.name for parameter in operation.path_parameters}
        if not names:
            continue
        about = DATASET if operation.path.startswith("/v1/datasets") else "model"
        values = {name: known.get(name, about) for name in names}
        if operation.path.endswith(".pem"):
            values["key_id"] = services.signer.key_id
        _call(operation, headers, path_parameters=values)


def _call(operation: APIOperation, headers: dict[str, str], **generation: object) -> None:
    @given(case=operation.as_strategy(**generation))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    def call(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=dict(headers))

    call()
