"""What callers and the log are told when the database fails, or a path is nobody's."""

import json
import logging

import psycopg
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from app.api.protocol.errors import install, problem_of


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
