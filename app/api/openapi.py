"""The OpenAPI document, with what holds for all operations and so stands at none of them."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from app.api.errors import PROBLEM_MEDIA_TYPE, Problem
from app.api.headers import described
from app.api.idempotency import HEADER, MAX_KEY_LENGTH, REPLAYED_HEADER
from app.api.problem_types import PROBLEM_TYPES

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
    "description": "Repeating a call under its key within 24 hours gives the answer that it had, "
    f"with `{REPLAYED_HEADER}: true`, and changes nothing again. Take a random one for each call.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH},
}
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The ETag of the answer that the caller holds: 304 if it is current",
    "schema": {"type": "string"},
}
_DESCRIPTION = """
* **Errors** are problems (RFC 9457) with a stable `type`; see `docs/problems.md`. A method that a
  path does not take is 405 with `Allow`.
* **Repeating a POST** is safe under an `Idempotency-Key`.
* **Lists** come in pages of `limit` items; `next_cursor` leads to the next one.
* **Answers to GET** have an `ETag`. With `Prefer: wait=N` some are held back until there is news.
"""


def install(app: FastAPI) -> None:
    """Have an application describe itself completely."""
    app.description = _DESCRIPTION
    plain = app.openapi

    def openapi() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(plain())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: Json) -> Json:
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
    for method, operation in _operations(document):
        if method == "post":
            _allow_repeating(operation)
        if method == "get":
            _tag(operation)
        if "requestBody" in operation:
            _limit_body(operation)
        if "security" in operation:
            _add_problems(operation, 503)
        components.setdefault("responses", {}).update(_name_problems(operation))
    return document


def _operations(document: Json) -> Iterator[tuple[str, Json]]:
    for methods in document["paths"].values():
        yield from methods.items()


def _allow_repeating(operation: Json) -> None:
    operation.setdefault("parameters", []).append(_IDEMPOTENCY_KEY)
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            answer.setdefault("headers", {}).update(described(REPLAYED_HEADER))
    _add_problems(operation, 409, 422)


def _tag(operation: Json) -> None:
    answer = operation["responses"].get("200", {})
    if set(answer.get("content", ())) != {_JSON}:
        return
    operation.setdefault("parameters", []).append(_IF_NONE_MATCH)
    answer.setdefault("headers", {}).update(described("ETag"))
    unchanged: Json = {"description": HTTPStatus(304).phrase, "headers": described("ETag")}
    if any(parameter["name"].lower() == "prefer" for parameter in operation["parameters"]):
        for each in (answer, unchanged):
            each["headers"] |= described("Preference-Applied")
    operation["responses"].setdefault("304", unchanged)
    _add_problems(operation, 412)


def _limit_body(operation: Json) -> None:
    _add_problems(operation, 413, 415)
    if _JSON in operation["requestBody"]["content"]:
        _add_problems(operation, 400)


def _add_problems(operation: Json, *statuses: int) -> None:
    for status in statuses:
        operation["responses"].setdefault(str(status), {"content": {PROBLEM_MEDIA_TYPE: {}}})


def _name_problems(operation: Json) -> Json:
    """Replace an operation's problems by references; return what they refer to."""
    named: Json = {}
    for status, answer in operation["responses"].items():
        if PROBLEM_MEDIA_TYPE in answer.get("content", ()):
            name = f"Problem{status}"
            named[name] = _problem(int(status))
            operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}
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
    if status in _HEADERS_OF_PROBLEMS:
        answer["headers"] = described(*_HEADERS_OF_PROBLEMS[status])
    return answer
