"""The OpenAPI document, including what applies to all operations."""

import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from app.api.protocol.errors import PROBLEM_MEDIA_TYPE, PROBLEM_TYPES, Problem
from app.api.protocol.idempotency import HEADER, MAX_KEY_LENGTH, REPLAYED_HEADER
from app.api.protocol.schemas import described

Json = dict[str, Any]

_JSON = "application/json"
_HEADERS_OF_PROBLEMS = {
    401: ("WWW-Authenticate",),
    403: ("WWW-Authenticate",),
    405: ("Allow",),
    409: ("Retry-After",),
    416: ("Content-Range",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}
_IDEMPOTENCY_KEY = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "Repeating a call with its key within 24 hours returns the first answer, "
    f"with `{REPLAYED_HEADER}: true`, and changes nothing. Use a random key for each call.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH},
}
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The ETag of the caller's copy: 304 if it is current",
    "schema": {"type": "string"},
}
_NEVER_SENT = ("HTTPValidationError", "ValidationError")
_LIMITS = ("RateLimit", "RateLimit-Policy")
_DESCRIPTION = """
* **Errors** are problems (RFC 9457) with a stable `type`; the documentation lists them. A method
  that a path does not support gets 405 with `Allow`.
* **Repeating a POST or a PUT** is safe with an `Idempotency-Key`.
* **Lists** come in pages of `limit` items; `next_cursor` leads to the next one.
* **Every answer** has an `X-Request-ID`, which is also in the service's log; an id of your own, of
  8 to 64 letters, digits, dots, hyphens and underscores, is kept.
* **Limits** of calls, if the operator has set any, are in `RateLimit` and `RateLimit-Policy`;
  beyond them the answer is 429 with `Retry-After`.
* **Answers to GET** have an `ETag`. With `Prefer: wait=N` some wait for a change.
"""


def install(app: FastAPI) -> None:
    """Add the complete OpenAPI document to an application."""
    app.description = _DESCRIPTION
    plain = app.openapi

    def openapi() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(_by_title(plain()))
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _by_title(document: Json) -> Json:
    """Name each page as its title does: ``RunPage``, where Pydantic says ``Page_RunAnswer_``."""
    text = json.dumps(document)
    for name, schema in document["components"]["schemas"].items():
        if name.startswith("Page_"):
            text = text.replace(f'"{name}"', f'"{schema["title"]}"')
            text = text.replace(f'/schemas/{name}"', f'/schemas/{schema["title"]}"')
    named: Json = json.loads(text)
    return named


def _complete(document: Json) -> Json:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    for name in _NEVER_SENT:
        schemas.pop(name, None)
    for methods in document["paths"].values():
        for method, operation in methods.items():
            _complete_operation(method, operation)
            components.setdefault("responses", {}).update(_name_problems(operation))
            # Problems are references now, and declare these headers already.
            everywhere = described("X-Request-ID", *(_LIMITS if "security" in operation else ()))
            for answer in operation["responses"].values():
                if "$ref" not in answer:
                    answer.setdefault("headers", {}).update(everywhere)
    return document


def _complete_operation(method: str, operation: Json) -> None:
    responses = operation["responses"]
    # FastAPI declares errors by default that this service does not send.
    schema = responses.get("422", {}).get("content", {}).get(_JSON, {}).get("schema", {})
    if schema.get("$ref", "").rpartition("/")[2] in _NEVER_SENT:
        del responses["422"]
    if method in ("post", "put"):
        operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
        for status, answer in responses.items():
            if status.startswith("2"):
                answer.setdefault("headers", {}).update(described(REPLAYED_HEADER))
        _add_problems(operation, 409, 422)
    answer = responses.get("200", {})
    if method == "get" and set(answer.get("content", ())) == {_JSON}:
        parameters = operation.setdefault("parameters", [])
        waits = any(parameter["name"].lower() == "prefer" for parameter in parameters)
        parameters.append(_IF_NONE_MATCH)
        headers = described("ETag", *(["Preference-Applied"] if waits else []))
        answer.setdefault("headers", {}).update(headers)
        unchanged = {"description": HTTPStatus(304).phrase, "headers": dict(headers)}
        responses.setdefault("304", unchanged)
        _add_problems(operation, 412)
    if "requestBody" in operation:
        _add_problems(operation, 413, 415)
        if _JSON in operation["requestBody"]["content"] and "400" not in responses:
            _add_problems(operation, 400)
    if "security" in operation:
        _add_problems(operation, 503)


def _add_problems(operation: Json, *statuses: int) -> None:
    """Declare problems, in addition to an operation's own answers with these statuses."""
    for status in statuses:
        answer = operation["responses"].setdefault(str(status), {})
        answer.setdefault("content", {}).setdefault(PROBLEM_MEDIA_TYPE, {})


def _name_problems(operation: Json) -> Json:
    """Replace an operation's problems by references; return their targets."""
    named: Json = {}
    for status, answer in operation["responses"].items():
        content = answer.get("content", {})
        if PROBLEM_MEDIA_TYPE not in content:
            continue
        problem = _problem(int(status))
        if set(content) == {PROBLEM_MEDIA_TYPE}:
            name = f"Problem{status}"
            named[name] = problem
            operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}
        else:
            content |= problem["content"]
            answer["headers"] = answer.get("headers", {}) | problem["headers"]
    return named


def _problem(status: int) -> Json:
    kinds = [kind for kind in PROBLEM_TYPES.values() if kind.status == status]
    schema = {
        "allOf": [{"$ref": "#/components/schemas/Problem"}],
        "properties": {
            "type": {"enum": [kind.uri for kind in kinds]},
            "status": {"const": status},
        },
    }
    answer: Json = {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(kind.name for kind in kinds)}",
        "content": {
            PROBLEM_MEDIA_TYPE: {
                "schema": schema,
                "examples": {
                    kind.name: {
                        "summary": kind.meaning,
                        "value": kind.body(kind.detail, kind.members),
                    }
                    for kind in kinds
                },
            }
        },
    }
    own = _HEADERS_OF_PROBLEMS.get(status, ())
    answer["headers"] = described(*own, "X-Request-ID", *_LIMITS)
    return answer
