"""API keys and the audit trail on the command line."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from app.cli.main import app

runner = CliRunner()


def _run(*arguments: str) -> str:
    answer = runner.invoke(app, list(arguments))
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def _create(*arguments: str) -> dict:
    return json.loads(_run("api-key", "create", "desk", "--scope", "forget:write", *arguments))


def test_a_key_is_made_listed_and_revoked(served: None) -> None:
    made = _create("--scope", "forget:read")
    assert made["scopes"] == ["forget:read", "forget:write"]
    assert made["secret"].startswith("xpg_")

    listed = _run("api-key", "list")
    assert made["secret"] not in listed
    assert made["id"] in listed
    _run("api-key", "revoke", made["id"])
    (shown,) = [key for key in json.loads(_run("api-key", "list")) if key["id"] == made["id"]]
    assert shown["revoked_at"] is not None


@pytest.mark.parametrize(
    ("option", "span"),
    [
        ("90d", timedelta(days=90)),
        ("12h", timedelta(hours=12)),
        ("30m", timedelta(minutes=30)),
    ],
)
def test_a_key_for_a_while(served: None, option: str, span: timedelta) -> None:
    end = datetime.fromisoformat(_create("--expires-in", option)["expires_at"])
    assert abs(end - datetime.now(UTC) - span) < timedelta(minutes=1)


def test_a_key_until_a_day(served: None) -> None:
    end = _create("--expires-at", "2100-01-31")["expires_at"]
    assert datetime.fromisoformat(end) == datetime(2100, 1, 31, tzinfo=UTC)
    end = _create("--expires-at", "2100-01-31T12:00:00+02:00")["expires_at"]
    assert datetime.fromisoformat(end) == datetime(2100, 1, 31, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "options",
    [
        ("--expires-in", "90"),
        ("--expires-in", "0d"),
        ("--expires-in", "-1d"),
        ("--expires-in", "999999d"),
        ("--expires-at", "soon"),
        ("--expires-at", "2001-01-01"),
        ("--expires-in", "1d", "--expires-at", "2100-01-31"),
    ],
)
def test_an_end_that_cannot_be_is_told_in_words(served: None, options: tuple[str, ...]) -> None:
    answer = runner.invoke(app, ["api-key", "create", "desk", "--scope", "forget:write", *options])
    assert answer.exit_code == 1
    assert isinstance(answer.exception, SystemExit), answer.exception
    assert answer.stderr.startswith("error: ")
    assert "expires" in answer.stderr


def test_the_audit_trail(served: None) -> None:
    made = _create()
    newest = _run("audit", "--kind", "key.created", "--limit", "1")
    assert made["id"] in newest
    assert "(admin)" in newest
    assert "key.created" in newest
    assert len(_run("audit").splitlines()) == 2
    assert _run("audit", "--caller", "nobody") == ""
