"""Errors as problems (RFC 9457): one table from error classes to problem types."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from psycopg.errors import DiskFull
from pydantic import BaseModel
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from app.api.protocol.problem_types import PROBLEM_TYPES, ProblemType
from app.api.protocol.schemas import answer_headers
from app.domain import errors
from app.runtime import log_context
from app.runtime.database import is_away

_log = logging.getLogger("expunge.api")

PROBLEM_MEDIA_TYPE = "application/problem+json"
MAX_LISTED = 20
"""How many errors of one body an answer lists, so that it is not longer than the body."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

# The first matching class counts, so subclasses precede their parents.
_PROBLEMS: tuple[tuple[type[errors.ExpungeError], str], ...] = (
    (errors.ExpiredCredentialsError, "credentials-expired"),
    (errors.UnauthenticatedError, "unauthenticated"),
    (errors.ForbiddenError, "missing-scope"),
    (errors.NotFoundError, "not-found"),
    (errors.NotReadyError, "not-ready"),
    (errors.PublicDatasetError, "public-dataset"),
    (errors.CallInFlightError, "call-in-flight"),
    (errors.ConflictError, "conflict"),
    (errors.GoneError, "gone"),
    (errors.PreconditionError, "precondition-failed"),
    (errors.RangeError, "range-not-satisfiable"),
    (errors.PayloadTooLargeError, "payload-too-large"),
    (errors.UnsupportedMediaTypeError, "unsupported-media-type"),
    (errors.IdempotencyKeyReusedError, "idempotency-key-reused"),
    (errors.InvalidRecordsError, "invalid-records"),
    (errors.UnknownRecordsError, "unknown-records"),
    (errors.ParameterError, "parameter-out-of-range"),
    (errors.PlanError, "no-plan"),
    (errors.CalibrationError, "no-plan"),
    (errors.UnreadableError, "bad-request"),
    (errors.TooCostlyError, "too-costly"),
    (errors.OverloadedError, "overloaded"),
    (errors.PlaceNotAllowedError, "place-not-allowed"),
    (errors.InvalidInputError, "invalid-input"),
    (errors.TooManyRequestsError, "too-many-requests"),
    (errors.CorruptLogError, "corrupt-log"),
    (errors.CorruptObjectError, "corrupt-object"),
    (errors.IssuerUnavailableError, "issuer-unavailable"),
    (errors.ObjectStoreError, "storage-unavailable"),
    (errors.KeyServiceError, "storage-unavailable"),
    (errors.KeyStoreError, "storage-unavailable"),
)
_OF_STATUS = {
    400: "bad-request",
    404: "not-found",
    405: "method-not-allowed",
    413: "payload-too-large",
    415: "unsupported-media-type",
    503: "overloaded",
}


class Problem(BaseModel):
    """An error, RFC 9457. Some types have further members."""

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


def answers(*problems: int, status: int = 200, headers: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a route's decorator declares: its problems, and its status with its headers."""
    responses = problem_responses(*problems)
    if headers:
        responses |= answer_headers(status, *headers)
    return {"responses": responses} | ({} if status == 200 else {"status_code": status})


def install(app: FastAPI) -> None:
    """Answer every error with a problem."""
    for kind in (
        errors.ExpungeError,
        RequestValidationError,
        DBAPIError,
        PoolTimeoutError,
        Exception,
    ):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


def problem_of(error: Exception) -> Response:
    """Return the answer to any error, with public details only."""
    if isinstance(error, errors.ExpungeError):
        return _of_expunge_error(error)
    if isinstance(error, RequestValidationError):
        return _of_validation_error(error)
    if isinstance(error, HTTPException):
        return _of_http_exception(error)
    if isinstance(error, DBAPIError | PoolTimeoutError):
        return _of_database_error(error)
    # This answer is created outside all middleware.
    headers = {"X-Request-ID": log_context.present().get("request_id", "")}
    return _problem("internal", "an unexpected error; see the service's log", headers=headers)


def _on_error(_request: Request, error: Exception) -> Response:
    answered = isinstance(error, DataError | IntegrityError) or is_away(error)
    if isinstance(error, DBAPIError) and not answered:
        # Only its kind: its words can quote what is stored.
        _log.error("the database failed: %s", type(error.orig).__name__)
    return problem_of(error)


def _on_http_exception(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        methods = ", ".join(_methods_of(request))
        return _problem(
            "method-not-allowed", f"this path takes {methods}", headers={"Allow": methods}
        )
    return problem_of(error)


def _methods_of(request: Request) -> list[str]:
    """Return all methods that the routes of this path accept."""
    return [
        method
        for method in _METHODS
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.router.routes
        )
    ]


def _problem(
    name: str, detail: str, *, headers: dict[str, str] | None = None, **members: object
) -> Response:
    kind = PROBLEM_TYPES[name]
    # In ASCII: the caller's text may hold a lone surrogate, which UTF-8 cannot encode.
    body = json.dumps(kind.body(detail, members)).encode()
    return Response(body, kind.status, headers, media_type=PROBLEM_MEDIA_TYPE)


def type_of(error: errors.ExpungeError) -> ProblemType | None:
    """Return the type of problem that an error of ours is; None for those of the operator."""
    return next((PROBLEM_TYPES[name] for kind, name in _PROBLEMS if isinstance(error, kind)), None)


def _of_expunge_error(error: errors.ExpungeError) -> Response:
    kind = type_of(error)
    if kind is None:
        return _problem("internal", "the service is misconfigured; see its log")
    return _problem(kind.name, str(error), headers=_headers(error), **_members(error))


def _headers(error: Exception) -> dict[str, str]:
    """Return an answer's own headers; RFC 6750 requires a challenge in 401 and 403 answers."""
    realm = 'Bearer realm="expunge"'
    match error:
        case errors.InvalidCredentialsError():
            header = ("WWW-Authenticate", f'{realm}, error="invalid_token"')
        case errors.UnauthenticatedError():
            header = ("WWW-Authenticate", realm)
        case errors.ForbiddenError(scope=scope):
            header = ("WWW-Authenticate", f'{realm}, error="insufficient_scope", scope="{scope}"')
        case errors.RangeError(size=size):
            header = ("Content-Range", f"bytes */{size}")
        case errors.TooManyRequestsError() | errors.CallInFlightError():
            header = ("Retry-After", str(error.retry_after_s))
        case errors.IssuerUnavailableError() | errors.OverloadedError():
            header = ("Retry-After", "5")
        case errors.ObjectStoreError() | errors.KeyServiceError() | errors.KeyStoreError():
            header = ("Retry-After", "30")
        case _:
            return {}
    return dict([header])


def _members(error: Exception) -> dict[str, Any]:
    match error:
        case errors.UnknownRecordsError(count=count, examples=examples):
            return {"unknown_count": count, "unknown": list(examples)}
        case errors.InvalidRecordsError(count=count, problems=problems):
            return {"problem_count": count, "problems": list(map(asdict, problems))}
        case errors.ParameterError(name=name, allowed=allowed):
            return {"parameter": name, "allowed": allowed}
        case errors.ForbiddenError(scope=scope):
            return {"scope": scope}
    return {}


class BodyError(RequestValidationError):
    """A body that does not match its schema: of ``count`` errors, ``errors`` lists the first."""

    def __init__(self, faults: Sequence[Any], count: int) -> None:
        super().__init__(faults)
        self.count = count


def _of_validation_error(error: RequestValidationError) -> Response:
    faults = error.errors()
    count = error.count if isinstance(error, BodyError) else len(faults)
    problems = [
        {"field": ".".join(str(part) for part in fault["loc"]), "reason": fault["msg"]}
        for fault in faults[:MAX_LISTED]
    ]
    first = f"{problems[0]['field']}: {problems[0]['reason']}" if problems else "invalid"
    return _problem("invalid-input", first, problem_count=count, problems=problems)


def _of_http_exception(error: HTTPException) -> Response:
    name = _OF_STATUS.get(error.status_code, "internal")
    bare = error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase
    detail = "there is nothing at this path; /openapi.json lists all" if bare else error.detail
    return _problem(name, detail, headers=dict(error.headers or {}))


def _of_database_error(error: Exception) -> Response:
    if isinstance(error, DataError):
        detail = "a text or number cannot be stored: a NUL character, or out of range"
        return _problem("invalid-input", detail)
    if isinstance(error, IntegrityError):
        detail = "a concurrent call changed the same resource; check its state and repeat"
        return _problem("conflict", detail)
    # The connection may have been lost after a commit, before the answer.
    detail = "the database cannot be reached; repeat the call"
    if isinstance(getattr(error, "orig", None), DiskFull):
        detail = "the database has no room on its disk; repeat the call once there is some"
    elif not is_away(error):
        detail = "the database failed, see the service's log; repeat the call"
    return _problem("unavailable", detail, headers={"Retry-After": "2"})
