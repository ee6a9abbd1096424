"""``/opendsr/v2/requests``: requests, status, cancellation.

https://github.com/opengdpr/OpenDSR, version 2.0; ``docs/opendsr.md`` lists what is not supported.
"""

import base64
from datetime import UTC, datetime

from fastapi import APIRouter
from pydantic import ValidationError

from app.api.protocol.access import ForgetReader, ForgetWriter, ServicesOf
from app.api.protocol.bodies import RawBody
from app.domain.errors import InvalidInputError
from app.ledger.subjects import status as subject_status
from app.ledger.subjects.requests import NewSubjectRequest
from app.ledger.subjects.status import API_VERSION
from app.opendsr import schemas
from app.opendsr.discovery import ERASURE, PREFIX, RAW
from app.opendsr.signed import SignedRoute, signed_responses
from app.runtime.locations import opendsr_domain
from app.runtime.settings import Settings

router = APIRouter(prefix=PREFIX, tags=["OpenDSR"], route_class=SignedRoute)


@router.post("/requests", status_code=201, responses=signed_responses(201, 404, 409))
def create_opendsr_request(
    body: schemas.SubjectRequestBody,
    raw: RawBody,
    services: ServicesOf,
    caller: ForgetWriter,
) -> schemas.Created:
    """Ask every dataset that knows a person to forget them."""
    asked = _new_request(body, services.settings)
    with services.database.transaction() as session:
        services.subject_requests.warm(session, asked)
    with services.database.transaction() as session:
        row = services.subject_requests.submit(session, asked, api_key_id=caller.key_id)
        return schemas.Created(
            controller_id=caller.key_id,
            expected_completion_time=row.due_at,
            received_time=row.received_at,
            encoded_request=base64.b64encode(raw).decode(),
            subject_request_id=row.subject_request_id,
        )


@router.get("/requests/{subject_request_id}", responses=signed_responses(200, 404))
def get_opendsr_request(
    subject_request_id: schemas.SubjectRequestId, services: ServicesOf, caller: ForgetReader
) -> schemas.Status:
    """Show the status of a request made with the same API key."""
    with services.database.transaction() as session:
        row = subject_status.find(session, subject_request_id, api_key_id=caller.key_id)
        return schemas.Status(**subject_status.document(row))


@router.delete(
    "/requests/{subject_request_id}",
    status_code=202,
    responses=signed_responses(202, 404, 409),
)
def cancel_opendsr_request(
    subject_request_id: schemas.SubjectRequestId, services: ServicesOf, caller: ForgetWriter
) -> schemas.Cancelled:
    """Cancel a pending request."""
    with services.database.transaction() as session:
        row = services.subject_requests.cancel(
            session, subject_request_id, api_key_id=caller.key_id
        )
        return schemas.Cancelled(
            controller_id=caller.key_id,
            received_time=datetime.now(UTC),
            subject_request_id=row.subject_request_id,
            api_version=API_VERSION,
        )


def _new_request(body: schemas.SubjectRequestBody, settings: Settings) -> NewSubjectRequest:
    """Parse a body, or name the part that this processor does not support."""
    if body.subject_request_type != ERASURE:
        raise InvalidInputError("subject_request_type: this processor supports only erasure")
    if body.api_version not in (None, API_VERSION):
        raise InvalidInputError(f"api_version: only version {API_VERSION} is supported")
    if not body.subject_identities:
        raise InvalidInputError("subject_identities: at least one is required")
    for index, identity in enumerate(body.subject_identities):
        if identity.identity_type not in settings.opendsr_identity_types:
            raise InvalidInputError(
                f"subject_identities[{index}]: this type is not supported; see discovery"
            )
        if identity.identity_format != RAW:
            raise InvalidInputError(f"subject_identities[{index}]: the format must be raw")
    return NewSubjectRequest(
        subject_request_id=body.subject_request_id,
        subject_ids=[identity.identity_value for identity in body.subject_identities],
        datasets=_datasets(body, settings),
        regulation=body.regulation,
        submitted_at=body.submitted_time,
        status_callback_urls=body.status_callback_urls,
    )


def _datasets(body: schemas.SubjectRequestBody, settings: Settings) -> list[str]:
    """Return the datasets that the request concerns; empty means all."""
    ours = (body.extensions or {}).get(opendsr_domain(settings))
    if ours is None:
        return list(settings.opendsr_datasets)
    try:
        chosen = schemas.Extension.model_validate(ours).datasets
    except ValidationError as error:
        raise InvalidInputError("extensions: the format is {'datasets': [names]}") from error
    allowed = settings.opendsr_datasets
    if allowed and not set(chosen) <= set(allowed):
        raise InvalidInputError("extensions: a dataset that OpenDSR requests do not concern")
    return chosen or list(allowed)
