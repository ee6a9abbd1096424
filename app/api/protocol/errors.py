"""Every problem type. A type's URI never changes its meaning.

``make docs`` makes the page of problems from this table.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
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

from app.api.protocol.schemas import answer_headers
from app.domain import errors
from app.runtime import logs
from app.runtime.database import is_away

PREFIX = "urn:expunge:problem:"


@dataclass(frozen=True)
class ProblemType:
    """One type of problem.

    ``meaning`` says when it occurs, and what to do; ``detail`` and ``members`` are examples.
    """

    name: str
    status: int
    meaning: str
    detail: str
    members: dict[str, Any] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """The value of ``type``."""
        return PREFIX + self.name

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("-", " ").capitalize()

    def body(self, detail: str, members: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "type": self.uri,
            "title": self.title,
            "status": self.status,
            "detail": detail,
            **members,
        }


# By name: the status, the meaning, and examples of the detail and of further members.
_TYPES: dict[str, tuple[Any, ...]] = {
    "bad-request": (
        400,
        "The request cannot be parsed, for example JSON that is not UTF-8 or nests too deeply.",
        "the body cannot be read as JSON",
    ),
    "unauthenticated": (
        401,
        "No valid API key or access token came with the request. `WWW-Authenticate` says how to "
        "authenticate.",
        "send a valid API key as 'Authorization: Bearer …'",
    ),
    "credentials-expired": (
        401,
        "The API key or access token was valid once. Ask an administrator for another key, or the "
        "issuer for another token.",
        "this API key has expired",
    ),
    "missing-scope": (
        403,
        "The key is valid but lacks a scope, named in `scope`.",
        "this key lacks the scope forget:write",
        {"scope": "forget:write"},
    ),
    "not-found": (
        404,
        "A resource named in the path or the body does not exist.",
        "no model named 'digits-mlp'",
    ),
    "not-ready": (
        404,
        "It does not exist yet: a model's first version is still being certified. Try again later.",
        "model 'digits-mlp' has no certified version yet",
    ),
    "method-not-allowed": (
        405,
        "The path does not support this method. `Allow` lists those it supports.",
        "this path takes GET, POST",
    ),
    "conflict": (
        409,
        "The call conflicts with the current state: a name that is taken, a request that can no "
        "longer be cancelled. Check the current state first.",
        "model 'digits-mlp' exists already",
    ),
    "public-dataset": (
        409,
        "Records of a dataset that was defined as public cannot be forgotten: its owner asserts "
        "that nobody can ask for that, and public weights may have been made of them. If the "
        "assertion was wrong, docs/how-to/frozen-backbone.md says what to do.",
        "dataset 'open-digits' is public: its owner asserts that nobody can ask for its records to "
        "be forgotten, and public weights may rest on them",
    ),
    "call-in-flight": (
        409,
        "An earlier call with the same `Idempotency-Key` has not finished. Repeat the call after "
        "`Retry-After` seconds. If its process was killed, this takes at most a minute.",
        "a call with this Idempotency-Key is still in progress",
    ),
    "gone": (
        410,
        "The version was retired or withdrawn, or its weights are shredded; `detail` says why, for "
        "instance because every record that the model could be trained on was forgotten. It does "
        "not come back.",
        "version 1 of 'digits-mlp' was retired",
    ),
    "precondition-failed": (
        412,
        "`If-Match` names a state of the resource other than the current one.",
        "this is not the content that If-Match names",
    ),
    "payload-too-large": (
        413,
        "The body is larger than the operator's limit: `EXPUNGE_MAX_UPLOAD_BYTES` for files, "
        "`EXPUNGE_MAX_IDS_BYTES` for JSON that lists ids, `EXPUNGE_MAX_JSON_BYTES` for all other "
        "JSON. Nothing was stored.",
        "the body is larger than 536870912 bytes, this service's EXPUNGE_MAX_UPLOAD_BYTES; "
        "send it in parts",
    ),
    "unsupported-media-type": (
        415,
        "The operation does not support the body's `Content-Type`; or the body is compressed: "
        "`Content-Encoding` may only be `identity`, as `Accept-Encoding` says then.",
        "send the body as application/json",
    ),
    "range-not-satisfiable": (
        416,
        "`Range` begins after the end of the content. `Content-Range` gives its size.",
        "the content has 1024 bytes; the range begins after its end",
    ),
    "invalid-input": (
        422,
        "A field, parameter or file is invalid; `problems`, if present, lists the first errors, "
        "`problem_count` counts all. Nothing was stored.",
        "body.classes: Input should be a valid integer",
        {
            "problem_count": 1,
            "problems": [{"field": "body.classes", "reason": "Input should be a valid integer"}],
        },
    ),
    "idempotency-key-reused": (
        422,
        "The `Idempotency-Key` was used with another body. Use a new key for a new call.",
        "this Idempotency-Key came with another body before",
    ),
    "invalid-records": (
        422,
        "The Parquet file was rejected as a whole: `problems` lists each error with its column, "
        "its first row, counted from 0, and the number of `rows` that have it; `problem_count` "
        "counts all.",
        "1 problem(s); the first: row 3, column 'label': must lie between 0 and 9",
        {
            "problem_count": 1,
            "problems": [
                {"row": 3, "column": "label", "reason": "must lie between 0 and 9", "rows": 1}
            ],
        },
    ),
    "place-not-allowed": (
        422,
        "An import's `url` lies under none of the prefixes from which this service imports. The "
        "operator lists them in `EXPUNGE_IMPORT_PREFIXES`.",
        "the url lies under none of the prefixes that this service imports from: its operator sets "
        "EXPUNGE_IMPORT_PREFIXES",
    ),
    "unknown-records": (
        422,
        "A forget request names ids that the dataset never held; `unknown` shows up to 20 of them. "
        "Nothing was accepted: correct the ids and send the request again.",
        "ids that are unknown to this dataset: 1",
        {"unknown_count": 1, "unknown": ["person-0071"]},
    ),
    "parameter-out-of-range": (
        422,
        "A number lies outside the range for which the guarantee holds.",
        "epsilon must be above 0",
        {"parameter": "epsilon", "allowed": "above 0"},
    ),
    "no-plan": (
        422,
        "No mechanism can meet the policy; `detail` says what to change. `POST /v1/plans` shows "
        "what each mechanism would need.",
        "no mechanism meets epsilon 0.01 within 30 epochs: raise epsilon or budget_epochs",
    ),
    "too-costly": (
        422,
        "A plan of this size, or a body with so much content, takes more time or memory than one "
        "call may use. A plan may take 30 s. Use fewer "
        "steps, records or releases.",
        "planning takes longer than the 30 s that one call may: ask for less",
    ),
    "internal": (
        500,
        "A defect of the service. The answer shows no details; the service's log does.",
        "an unexpected error; see the service's log",
    ),
    "too-many-requests": (
        429,
        "The caller reached its limit of calls or of concurrent waits, has hundreds of "
        "calls that wait for their turn, or its address failed to authenticate too often. Repeat "
        "the call after `Retry-After` seconds.",
        "too many calls: 60 a minute are allowed",
    ),
    "corrupt-log": (
        500,
        "The log's tables are inconsistent. The operator runs `expunge log fsck`.",
        "the log has 12 entries but its tree covers 13",
    ),
    "corrupt-object": (
        500,
        "A stored object is not what was stored: the operator restores it or retires the version.",
        "object blob_5b0c is not what was stored: chunk 0 is forged",
    ),
    "overloaded": (
        503,
        "The service is at its limit of connections, calls, uploads in memory or concurrent plans. "
        "Nothing was stored. Repeat the call after `Retry-After` seconds.",
        "planning is busy: repeat the call",
    ),
    "unavailable": (
        503,
        "The database cannot be reached, or failed before it answered: the call may have taken "
        "effect. Repeat it after `Retry-After` seconds, a POST with its `Idempotency-Key`.",
        "the database cannot be reached; repeat the call",
    ),
    "issuer-unavailable": (
        503,
        "The issuer of access tokens cannot be reached, so a token cannot be checked. API keys "
        "still work.",
        "the issuer's keys cannot be fetched now",
    ),
    "storage-unavailable": (
        503,
        "Stored objects or their keys cannot be read or written now. Repeat the call after "
        "`Retry-After` seconds.",
        "the object store does not answer",
    ),
}
PROBLEM_TYPES = {name: ProblemType(name, *facts) for name, facts in _TYPES.items()}


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
        kind = type_of(error)
        if kind is None:
            return _problem("internal", "the service is misconfigured; see its log")
        return _problem(kind.name, str(error), headers=_headers(error), **_members(error))
    if isinstance(error, RequestValidationError):
        faults = error.errors()
        count = error.count if isinstance(error, BodyError) else len(faults)
        problems = [
            {"field": ".".join(str(part) for part in fault["loc"]), "reason": fault["msg"]}
            for fault in faults[:MAX_LISTED]
        ]
        first = f"{problems[0]['field']}: {problems[0]['reason']}" if problems else "invalid"
        return _problem("invalid-input", first, problem_count=count, problems=problems)
    if isinstance(error, HTTPException):
        name = _OF_STATUS.get(error.status_code, "internal")
        bare = error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase
        detail = "there is nothing at this path; /openapi.json lists all" if bare else error.detail
        return _problem(name, detail, headers=dict(error.headers or {}))
    if isinstance(error, DBAPIError | PoolTimeoutError):
        return _of_database_error(error)
    # This answer is created outside all middleware.
    headers = {"X-Request-ID": logs.present().get("request_id", "")}
    return _problem("internal", "an unexpected error; see the service's log", headers=headers)


def _on_error(_request: Request, error: Exception) -> Response:
    answered = isinstance(error, DataError | IntegrityError) or is_away(error)
    if isinstance(error, DBAPIError) and not answered:
        # Only its kind: its words can quote what is stored.
        _log.error("the database failed: %s", type(error.orig).__name__)
    return problem_of(error)


def _on_http_exception(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        methods = ", ".join(
            method
            for method in _METHODS
            if any(
                route.matches({**request.scope, "method": method})[0] is Match.FULL
                for route in request.app.router.routes
            )
        )
        return _problem(
            "method-not-allowed", f"this path takes {methods}", headers={"Allow": methods}
        )
    return problem_of(error)


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
