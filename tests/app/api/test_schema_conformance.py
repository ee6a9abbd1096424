"""Generated calls of every operation: each answer is one that OpenAPI announces.

All checks of schemathesis, few examples of each operation; ``docs/development.md`` tells how to run
thousands against a served instance.
"""

from contextlib import suppress

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation
from sqlalchemy import select

from app.certificates.tables import CertificateRow
from app.ledger.tables import ForgetRequestRow
from app.main import create_app
from app.services import Services
from tests.support import schemathesis_hooks  # noqa: F401 - registers how files are sent
from tests.support.workshop import DATASET, Workshop

EXAMPLES = 10


@pytest.fixture
def operations(services: Services, workshop: Workshop) -> list[APIOperation]:
    """All operations of an application whose model ``model`` has released and forgotten."""
    workshop.define()
    workshop.work()
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    workshop.work()
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(services))
    found = [operation.ok() for operation in schema.get_all_operations()]
    assert len(found) > 40
    return found


@pytest.fixture
def headers(admin_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {admin_key}"}


def test_answers_are_as_announced(operations: list[APIOperation], headers: dict[str, str]) -> None:
    for operation in operations:
        _call(operation, headers)


def test_answers_to_invalid_calls_are_as_announced(
    operations: list[APIOperation], headers: dict[str, str]
) -> None:
    called = 0
    for operation in operations:
        with suppress(Unsatisfiable):  # nothing that it takes can be invalid
            _call(operation, headers, generation_mode=schemathesis.GenerationMode.NEGATIVE)
            called += 1
    assert called > 20


def test_answers_about_what_exists_are_as_announced(
    operations: list[APIOperation], headers: dict[str, str], workshop: Workshop, services: Services
) -> None:
    with services.database.transaction() as session:
        request, certificate = (
            session.scalars(select(table.id)).first()
            for table in (ForgetRequestRow, CertificateRow)
        )
    known = {
        "request_id": request,
        "certificate_id": certificate,
        "run_id": workshop.runs()[-1].id,
        "key_id": workshop.key_id,
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
