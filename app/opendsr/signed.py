"""OpenDSR answers: signed, with errors in the specification's own format."""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError, IntegrityError
from starlette.exceptions import HTTPException

from app.api.protocol.access import GuardedRoute, services_of
from app.api.protocol.errors import MAX_LISTED, problem_responses
from app.api.protocol.schemas import described
from app.domain import errors
from app.evidence.certificates.processor_signing import DOMAIN_HEADER, SIGNATURE_HEADER
from app.opendsr.schemas import Error, ErrorAnswer, ErrorDetail

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
