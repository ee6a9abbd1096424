"""What callers and the log are told when the database fails, or a path is nobody's."""

import json
import logging

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from app.api.protocol.errors import problem_of


@pytest.mark.parametrize(
    ("cause", "detail", "logged"),
    [
        (psycopg.OperationalError("refused: secret"), "cannot be reached", []),
        (psycopg.errors.DiskFull("secret"), "see the service's log", ["DiskFull"]),
    ],
)
def test_a_database_that_fails_is_told_from_one_that_is_away(
    cause: Exception, detail: str, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "expunge.api"):
        answer = problem_of(OperationalError("SELECT 'secret'", {}, cause))
    body = json.loads(answer.body)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert detail in body["detail"]
    assert [record.args for record in caplog.records] == [tuple(logged)] * len(logged)
    assert "secret" not in caplog.text + body["detail"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (HTTPException(404), "there is nothing at this path; /docs lists all"),
        (HTTPException(404, "no model named 'a'"), "no model named 'a'"),
    ],
)
def test_a_path_that_is_not_there_is_told_from_a_thing(error: HTTPException, told: str) -> None:
    assert json.loads(problem_of(error).body)["detail"] == told
