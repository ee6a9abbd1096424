"""What commands say of an error: one line, with its details below, and nothing of a record."""

import psycopg
import pytest
import typer
from sqlalchemy.exc import OperationalError, ProgrammingError

from app.cli.connection import errors_in_words
from app.domain.errors import ConfigurationError, ExpungeError, InvalidInputError


def told(error: Exception, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(typer.Exit), errors_in_words():
        raise error
    return capsys.readouterr().err.splitlines()


def test_a_network_s_traceback_stands_below_the_error(capsys) -> None:
    error = InvalidInputError('it failed\n\nTraceback\n  File "nets.py"\n\tline')
    assert told(error, capsys) == [
        "error: it failed",
        "  Traceback",
        '    File "nets.py"',
        "    line",
    ]


def test_every_wrong_setting_is_an_error(capsys) -> None:
    assert told(ConfigurationError("A: wrong\nB: wrong"), capsys) == [
        "error: A: wrong",
        "error: B: wrong",
    ]


def test_an_error_without_words_is_one_line(capsys) -> None:
    assert told(ExpungeError(""), capsys) == ["error: "]


def test_why_a_database_lets_nobody_in_is_said(capsys) -> None:
    refusal = psycopg.OperationalError('FATAL:  password failed for user "a"\n')
    lines = told(OperationalError("SELECT", {}, refusal), capsys)
    assert "EXPUNGE_DATABASE_URL" in lines[0]
    assert lines[1:] == ['  FATAL:  password failed for user "a"']


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (psycopg.errors.InsufficientPrivilege, "EXPUNGE_MIGRATION_URL"),
        (psycopg.errors.UndefinedTable, "expunge init"),
        (psycopg.errors.UniqueViolation, "UniqueViolation"),
    ],
)
def test_a_refused_statement_is_named_by_its_kind_alone(kind, advice, capsys) -> None:
    """A server's message can quote what is stored."""
    (line,) = told(ProgrammingError("SELECT", {}, kind("Key (id)=(record-17)")), capsys)
    assert advice in line
    assert "record-17" not in line
