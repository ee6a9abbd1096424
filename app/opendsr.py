"""OpenDSR 2.0 (``/opendsr/v2``): an adapter over the service of subject requests.

Answers about requests are signed, with errors in the specification's own format. Unknown members of
bodies are ignored, as it demands.

https://github.com/opengdpr/OpenDSR, version 2.0; ``docs/opendsr.md`` lists what is not supported.
"""

import base64
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
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
from app.api.protocol.schemas import Answer, Name, OwnerId, described
from app.delivery.callbacks.addresses import MAX_URL_LENGTH, MAX_URLS
from app.domain import errors
from app.domain.errors import InvalidInputError
from app.evidence.certificates.processor_signing import DOMAIN_HEADER, SIGNATURE_HEADER
from app.ledger.subjects import status as subject_status
from app.ledger.subjects.requests import NewSubjectRequest
from app.ledger.subjects.status import API_VERSION
from app.runtime.locations import opendsr_domain, public_url
from app.runtime.settings import Settings

SubjectRequestId = Annotated[
    str,
    StringConstraints(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
    ),
]
"""A UUID of version 4, in lower case."""

_MAX_IDENTITIES = 100


class Tolerant(BaseModel):
    """A body, or part of one; may have members for other processors or versions."""

    model_config = ConfigDict(extra="ignore", strict=True)


class Identity(Tolerant):
    """An identity of the person."""

    identity_type: str = Field(max_length=100, examples=["controller_customer_id"])
    identity_value: OwnerId = Field(examples=["person-0017"])
    identity_format: str = Field(max_length=20, json_schema_extra={"enum": ["raw"]})


class Extension(BaseModel):
    """This processor's own extension, under its domain in ``extensions``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    datasets: list[Name] = Field(default_factory=list, max_length=1000)


def _with_identities(schema: dict[str, Any]) -> None:
    schema["required"] = [*schema["required"], "subject_identities"]


class SubjectRequestBody(Tolerant):
    """A data subject request (section 7.1 of the specification).

    Where the schema is stricter than this model, the service rejects requests with its own
    messages.
    """

    model_config = ConfigDict(json_schema_extra=_with_identities)

    regulation: Literal["gdpr", "ccpa"]
    subject_request_id: SubjectRequestId = Field(examples=["a7551968-d5d6-44b2-9831-815ac9017798"])
    subject_request_type: str = Field(max_length=100, json_schema_extra={"enum": ["erasure"]})
    submitted_time: Annotated[AwareDatetime, Field(strict=False)] = Field(
        examples=["2026-01-02T15:00:00Z"]
    )
    subject_identities: list[Identity] = Field(
        default_factory=list, max_length=_MAX_IDENTITIES, json_schema_extra={"minItems": 1}
    )
    api_version: str | None = Field(
        default=None, max_length=20, json_schema_extra={"enum": ["2.0", None]}
    )
    status_callback_urls: list[
        Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL_LENGTH)]
    ] = Field(default_factory=list, max_length=MAX_URLS)
    extensions: dict[str, Any] | None = None


class SupportedIdentity(Answer):
    """A type of identity that this processor supports."""

    identity_type: str
    identity_format: str


class Discovery(Answer):
    """This processor's capabilities (section 6.3)."""

    api_version: str
    supported_identities: list[SupportedIdentity]
    supported_subject_request_types: list[str]
    processor_certificate: str


class Created(Answer):
    """The receipt of a request (section 7.3)."""

    controller_id: str
    expected_completion_time: datetime
    received_time: datetime
    encoded_request: str = Field(description="The request's body in Base64.")
    subject_request_id: str


class Status(Answer):
    """The status of a request (section 8.3)."""

    controller_id: str
    expected_completion_time: datetime
    subject_request_id: str
    request_status: str
    api_version: str
    results_url: str | None = Field(description="Always null: an erasure has no results.")


class Cancelled(Answer):
    """The receipt of a cancellation (section 9.2)."""

    controller_id: str
    received_time: datetime
    subject_request_id: str
    api_version: str


class ErrorDetail(Answer):
    """One error."""

    domain: str
    reason: str
    message: str


class Error(Answer):
    """The error details (section 7.6)."""

    code: int
    message: str
    errors: list[ErrorDetail]


class ErrorAnswer(Answer):
    """The error format of every endpoint here."""

    error: Error


PREFIX = "/opendsr/v2"
ERASURE = "erasure"
RAW = "raw"

public = APIRouter(prefix=PREFIX, tags=["OpenDSR"])


@public.get("/discovery")
def get_opendsr_discovery(services: ServicesOf) -> Discovery:
    """List this processor's capabilities; public."""
    settings = services.settings
    return Discovery(
        api_version=API_VERSION,
        supported_identities=[
            SupportedIdentity(identity_type=kind, identity_format=RAW)
            for kind in settings.opendsr_identity_types
        ],
        supported_subject_request_types=[ERASURE],
        processor_certificate=f"{public_url(settings)}{PREFIX}/certificate.pem",
    )


class PemResponse(PlainTextResponse):
    """A certificate with its chain."""

    media_type = "application/x-pem-file"


@public.get("/certificate.pem", response_class=PemResponse)
def get_opendsr_certificate(services: ServicesOf) -> PemResponse:
    """Return the signing key's X.509 certificate; public."""
    return PemResponse(services.processor_signer.certificate_pem)


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

        async def signed_answer(request: Request) -> Response:
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

        return signed_answer


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
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'][1:]) or 'body'}: {fault['msg']}"
            for fault in error.errors()[:MAX_LISTED]
        ]
        return _error(400, "invalid", faults)
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


def _error(status: int, reason: str, messages: list[str]) -> JSONResponse:
    details = [ErrorDetail(domain="Validation", reason=reason, message=m) for m in messages]
    answer = ErrorAnswer(error=Error(code=status, message=messages[0], errors=details))
    return JSONResponse(answer.model_dump(), status, {"Cache-Control": "no-store"})


signed = APIRouter(prefix=PREFIX, tags=["OpenDSR"], route_class=SignedRoute)


@signed.post("/requests", status_code=201, responses=signed_responses(201, 404, 409))
def create_opendsr_request(
    body: SubjectRequestBody,
    raw: RawBody,
    services: ServicesOf,
    caller: ForgetWriter,
) -> Created:
    """Ask every dataset that knows a person to forget them."""
    asked = _new_request(body, services.settings)
    with services.database.transaction() as session:
        services.subject_requests.warm(session, asked)
    with services.database.transaction() as session:
        row = services.subject_requests.submit(session, asked, api_key_id=caller.key_id)
        return Created(
            controller_id=caller.key_id,
            expected_completion_time=row.due_at,
            received_time=row.received_at,
            encoded_request=base64.b64encode(raw).decode(),
            subject_request_id=row.subject_request_id,
        )


@signed.get("/requests/{subject_request_id}", responses=signed_responses(200, 404))
def get_opendsr_request(
    subject_request_id: SubjectRequestId, services: ServicesOf, caller: ForgetReader
) -> Status:
    """Show the status of a request made with the same API key."""
    with services.database.transaction() as session:
        row = subject_status.find(session, subject_request_id, api_key_id=caller.key_id)
        return Status(**subject_status.document(row))


@signed.delete(
    "/requests/{subject_request_id}",
    status_code=202,
    responses=signed_responses(202, 404, 409),
)
def cancel_opendsr_request(
    subject_request_id: SubjectRequestId, services: ServicesOf, caller: ForgetWriter
) -> Cancelled:
    """Cancel a pending request."""
    with services.database.transaction() as session:
        row = services.subject_requests.cancel(
            session, subject_request_id, api_key_id=caller.key_id
        )
        return Cancelled(
            controller_id=caller.key_id,
            received_time=datetime.now(UTC),
            subject_request_id=row.subject_request_id,
            api_version=API_VERSION,
        )


def _new_request(body: SubjectRequestBody, settings: Settings) -> NewSubjectRequest:
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


def _datasets(body: SubjectRequestBody, settings: Settings) -> list[str]:
    """Return the datasets that the request concerns; empty means all."""
    ours = (body.extensions or {}).get(opendsr_domain(settings))
    if ours is None:
        return list(settings.opendsr_datasets)
    try:
        chosen = Extension.model_validate(ours).datasets
    except ValidationError as error:
        raise InvalidInputError("extensions: the format is {'datasets': [names]}") from error
    allowed = settings.opendsr_datasets
    if allowed and not set(chosen) <= set(allowed):
        raise InvalidInputError("extensions: a dataset that OpenDSR requests do not concern")
    return chosen or list(allowed)


router = APIRouter()
router.include_router(public)
router.include_router(signed)
