"""``/opendsr/v2/requests``: requests, status, cancellation.

Answers are signed, with errors in the specification's own format.

https://github.com/opengdpr/OpenDSR, version 2.0; ``docs/opendsr.md`` lists what is not supported.
"""

import base64
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy.exc import DataError, IntegrityError
from starlette.exceptions import HTTPException

from app.api.protocol.access import (
    ForgetReader,
    ForgetWriter,
    GuardedRoute,
    ServicesOf,
    services_of,
)
from app.api.protocol.bodies import RawBody
from app.api.protocol.errors import MAX_LISTED, problem_responses
from app.api.protocol.schemas import described
from app.domain import errors
from app.domain.errors import InvalidInputError
from app.evidence.certificates.processor_signing import DOMAIN_HEADER, SIGNATURE_HEADER
from app.ledger.subjects import status as subject_status
from app.ledger.subjects.requests import NewSubjectRequest
from app.ledger.subjects.status import API_VERSION
from app.opendsr import schemas
from app.opendsr.discovery import ERASURE, PREFIX, RAW
from app.opendsr.schemas import Error, ErrorAnswer, ErrorDetail
from app.runtime.locations import opendsr_domain
from app.runtime.settings import Settings

_STATUS_OF = (
    (errors.NotFoundError, 404),
    (errors.ConflictError, 409),
    (errors.InvalidInputError, 400),
)

_FAULTS = (RequestValidationError, HTTPException, errors.ExpungeError, DataError, IntegrityError)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class SignedRoute(GuardedRoute):
    """An endpoint whose answers carry the processor's signature.

    Invalid requests get the answer 400 (section 7.5). Authentication is outside the specification,
    so a missing key or scope, and an outage, are answered as elsewhere in this service.
    """

    def get_route_handler(self) -> Handler:
        """Return the handler that FastAPI calls."""
        handle = super().get_route_handler()

        async def signed(request: Request) -> Response:
            try:
                response = await handle(request)
            except _FAULTS as error:
                answer = _answer(error)
                if answer is None:
                    raise
                response = answer
            signer = services_of(request).processor_signer
            response.headers.update(signer.headers(bytes(response.body)))
            return response

        return signed


def signed_responses(success: int, *faults: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of an endpoint's answers: errors are 400 or in ``faults``."""
    problems = problem_responses()
    signature = described(DOMAIN_HEADER, SIGNATURE_HEADER)
    own: dict[int | str, dict[str, Any]] = {
        status: {
            "model": ErrorAnswer,
            "description": HTTPStatus(status).phrase,
            "headers": signature,
        }
        for status in (400, *faults)
    }
    own |= {status: problems[status] for status in (401, 403, 429)}
    return {success: {"headers": signature}} | own


def _answer(error: Exception) -> JSONResponse | None:
    if isinstance(error, RequestValidationError):
        return _error(400, "invalid", _faults(error))
    if isinstance(error, HTTPException) and error.status_code == 400:
        return _error(400, "invalid", [error.detail])
    if isinstance(error, DataError):
        return _error(400, "invalid", ["a text or number cannot be stored"])
    if isinstance(error, IntegrityError):
        return _error(409, "conflict", ["another call changed the same resource; check and retry"])
    for kind, status in _STATUS_OF:
        if isinstance(error, kind):
            return _error(status, type(error).__name__.removesuffix("Error"), [str(error)])
    return None


def _faults(error: RequestValidationError) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in fault['loc'][1:]) or 'body'}: {fault['msg']}"
        for fault in error.errors()[:MAX_LISTED]
    ]


def _error(status: int, reason: str, messages: list[str]) -> JSONResponse:
    details = [ErrorDetail(domain="Validation", reason=reason, message=m) for m in messages]
    answer = ErrorAnswer(error=Error(code=status, message=messages[0], errors=details))
    return JSONResponse(answer.model_dump(), status, {"Cache-Control": "no-store"})


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
