"""Errors as problems (RFC 9457): one table from our error classes to status and type."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException

from app import log_context
from app.domain import errors

PROBLEM_MEDIA_TYPE = "application/problem+json"
_TYPE_PREFIX = "urn:expunge:problem:"

# The first class that matches counts, so subclasses stand above their parents.
_PROBLEMS: tuple[tuple[type[errors.ExpungeError], int, str], ...] = (
    (errors.ExpiredCredentialsError, 401, "credentials-expired"),
    (errors.UnauthenticatedError, 401, "unauthenticated"),
    (errors.ForbiddenError, 403, "missing-scope"),
    (errors.NotFoundError, 404, "not-found"),
    (errors.NotReadyError, 404, "not-ready"),
    (errors.ConflictError, 409, "conflict"),
    (errors.GoneError, 410, "gone"),
    (errors.PreconditionError, 412, "precondition-failed"),
    (errors.RangeError, 416, "range-not-satisfiable"),
    (errors.PayloadTooLargeError, 413, "payload-too-large"),
    (errors.InvalidRecordsError, 422, "invalid-records"),
    (errors.UnknownRecordsError, 422, "unknown-records"),
    (errors.ParameterError, 422, "parameter-out-of-range"),
    (errors.PlanError, 422, "no-plan"),
    (errors.CalibrationError, 422, "no-plan"),
    (errors.InvalidInputError, 422, "invalid-input"),
    (errors.TooManyRequestsError, 429, "too-many-requests"),
    (errors.CorruptLogError, 500, "corrupt-log"),
    (errors.CorruptObjectError, 500, "corrupt-object"),
    (errors.IssuerUnavailableError, 503, "issuer-unavailable"),
    (errors.ObjectStoreError, 503, "storage-unavailable"),
    (errors.KeyStoreError, 503, "storage-unavailable"),
)


class Problem(BaseModel):
    """An error, RFC 9457. Some types carry further members."""

    type: str
    title: str
    status: int
    detail: str


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of an endpoint's errors."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {PROBLEM_MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
        }
        for status in (401, 403, 422, 429, *statuses)
    }


def install(app: FastAPI) -> None:
    """Answer every error with a problem."""
    app.add_exception_handler(errors.ExpungeError, _on_expunge_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(DBAPIError, _on_database_error)
    app.add_exception_handler(PoolTimeoutError, _on_database_error)
    app.add_exception_handler(Exception, _on_unexpected)


def _problem(
    status: int,
    name: str,
    detail: str,
    *,
    headers: dict[str, str] | None = None,
    **members: Any,  # noqa: ANN401
) -> JSONResponse:
    title = name.replace("-", " ").capitalize()
    body = {
        "type": _TYPE_PREFIX + name,
        "title": title,
        "status": status,
        "detail": detail,
        **members,
    }
    return JSONResponse(body, status, headers, media_type=PROBLEM_MEDIA_TYPE)


def _on_expunge_error(_: Request, error: Exception) -> JSONResponse:
    for kind, status, name in _PROBLEMS:
        if isinstance(error, kind):
            return _problem(status, name, str(error), headers=_headers(error), **_members(error))
    return _problem(500, "internal", "the service is not set up correctly; see its log")


def _headers(error: Exception) -> dict[str, str] | None:
    challenge = _challenge(error)
    if challenge is not None:
        return {"WWW-Authenticate": challenge}
    if isinstance(error, errors.RangeError):
        return {"Content-Range": f"bytes */{error.size}"}
    wait_s = _retry_after_s(error)
    return None if wait_s is None else {"Retry-After": str(wait_s)}


def _challenge(error: Exception) -> str | None:
    """Return what RFC 6750 has a caller told who is not let in."""
    realm = 'Bearer realm="expunge"'
    if isinstance(error, errors.InvalidCredentialsError):
        return f'{realm}, error="invalid_token"'
    if isinstance(error, errors.UnauthenticatedError):
        return realm
    if isinstance(error, errors.ForbiddenError):
        return f'{realm}, error="insufficient_scope", scope="{error.scope}"'
    return None


def _retry_after_s(error: Exception) -> int | None:
    if isinstance(error, errors.TooManyRequestsError):
        return error.retry_after_s
    if isinstance(error, errors.IssuerUnavailableError):
        return 5
    if isinstance(error, errors.ObjectStoreError):
        return 30
    return None


def _members(error: Exception) -> dict[str, Any]:
    if isinstance(error, errors.UnknownRecordsError):
        return {"unknown_count": error.count, "unknown": list(error.examples)}
    if isinstance(error, errors.InvalidRecordsError):
        problems = [{"row": p.row, "column": p.column, "reason": p.reason} for p in error.problems]
        return {"problem_count": error.count, "problems": problems}
    if isinstance(error, errors.ParameterError):
        return {"parameter": error.name, "allowed": error.allowed}
    if isinstance(error, errors.ForbiddenError):
        return {"scope": error.scope}
    return {}


def _on_validation_error(_: Request, error: Exception) -> JSONResponse:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    problems = [
        {"field": ".".join(str(part) for part in fault["loc"]), "reason": fault["msg"]}
        for fault in found
    ]
    first = f"{problems[0]['field']}: {problems[0]['reason']}" if problems else "invalid"
    return _problem(422, "invalid-input", first, problems=problems)


def _on_http_exception(_: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    phrase = HTTPStatus(status).phrase
    return _problem(status, phrase.lower().replace(" ", "-"), phrase, headers=headers)


def _on_database_error(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, DataError):
        detail = "a text or number cannot be stored: a NUL character, or out of range"
        return _problem(422, "invalid-input", detail)
    if isinstance(error, IntegrityError):
        detail = "another call changed the same thing at the same moment; look again and repeat"
        return _problem(409, "conflict", detail)
    return _problem(
        503,
        "unavailable",
        "the database cannot be reached; nothing was stored",
        headers={"Retry-After": "2"},
    )


def _on_unexpected(_: Request, __: Exception) -> JSONResponse:
    # This answer is made outside of all middleware.
    headers = {"X-Request-ID": log_context.present().get("request_id", "")}
    detail = "an unexpected error; nothing of it is told here"
    return _problem(500, "internal", detail, headers=headers)
