"""What callers and the log are told when the database fails, or a path is nobody's."""

import json
import logging

import psycopg
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from app.api.protocol import errors
from app.api.protocol.errors import PROBLEM_TYPES, install, problem_of
from app.domain import errors as causes


@pytest.mark.parametrize(
    ("cause", "detail", "logged"),
    [
        (psycopg.OperationalError("refused: secret"), "cannot be reached", []),
        (psycopg.errors.DiskFull("secret"), "no room on its disk", ["DiskFull"]),
        (psycopg.errors.DataCorrupted("secret"), "see the service's log", ["DataCorrupted"]),
    ],
)
def test_a_database_that_fails_is_told_from_one_that_is_away(
    cause: Exception, detail: str, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    error = OperationalError("SELECT 'secret'", {}, cause)
    api = FastAPI()
    install(api)

    @api.get("/")
    def fail() -> None:
        problem_of(error)  # as it is asked for its status before
        raise error

    with caplog.at_level(logging.ERROR, "expunge.api"):
        answer = TestClient(api).get("/")
    body = answer.json()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert detail in body["detail"]
    assert [record.args for record in caplog.records] == [tuple(logged)] * len(logged)
    assert "secret" not in caplog.text + body["detail"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (HTTPException(404), "there is nothing at this path; /openapi.json lists all"),
        (HTTPException(404, "no model named 'a'"), "no model named 'a'"),
    ],
)
def test_a_path_that_is_not_there_is_told_from_a_thing(error: HTTPException, told: str) -> None:
    assert json.loads(problem_of(error).body)["detail"] == told


def test_every_mapped_error_has_a_documented_type() -> None:
    assert {name for _, name in errors._PROBLEMS} <= set(PROBLEM_TYPES)
    assert set(errors._OF_STATUS.values()) <= set(PROBLEM_TYPES)
    for status, name in errors._OF_STATUS.items():
        assert PROBLEM_TYPES[name].status == status


def test_no_mapping_hides_behind_its_parent() -> None:
    seen: list[type] = []
    for kind, _ in errors._PROBLEMS:
        assert not any(issubclass(kind, earlier) for earlier in seen), kind
        seen.append(kind)


@pytest.mark.parametrize("kind", PROBLEM_TYPES.values(), ids=list(PROBLEM_TYPES))
def test_each_type_is_explained_with_an_example(kind: errors.ProblemType) -> None:
    assert kind.meaning.endswith(".")
    assert kind.detail
    assert kind.uri == f"urn:expunge:problem:{kind.name}"
    assert kind.body(kind.detail, kind.members)["status"] == kind.status


def test_types_keep_their_uris() -> None:
    """Callers decide by them: names are added here, never changed."""
    assert set(PROBLEM_TYPES) >= {
        "bad-request", "unauthenticated", "missing-scope", "not-found", "not-ready",
        "method-not-allowed", "conflict", "call-in-flight", "gone", "precondition-failed",
        "payload-too-large", "unsupported-media-type", "range-not-satisfiable", "invalid-input",
        "idempotency-key-reused", "invalid-records", "unknown-records", "parameter-out-of-range",
        "no-plan", "internal", "corrupt-log", "corrupt-object", "unavailable",
        "storage-unavailable",
    }  # fmt: skip


def test_what_no_type_is_for_is_told_as_internal() -> None:
    for kind in (causes.ConfigurationError, causes.SealedStateError):
        answer = errors.problem_of(kind("secret"))
        assert (answer.status_code, b"secret" in answer.body) == (500, False)
