"""API keys, the audit trail and callbacks on the command line."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from tests.support.workshop import DATASET, Workshop

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
    newest = _run("log", "trail", "--kind", "key.created", "--limit", "1")
    assert made["id"] in newest
    assert "(admin)" in newest
    assert "key.created" in newest
    assert len(_run("log", "trail").splitlines()) == 2
    assert _run("log", "trail", "--caller", "nobody") == ""


def run(*arguments: str, fails: bool = False) -> str:
    answer = runner.invoke(app, list(arguments))
    assert answer.exit_code == int(fails), answer.output
    return answer.stderr if fails else answer.stdout


def test_callbacks_are_listed_and_delivered_again(served: None, workshop: Workshop) -> None:
    url = "https://privacy.example/?token=sesame"
    request = json.loads(run("forget", DATASET, "--record", "record-1", "--callback", url))
    workshop.services.clean_up()  # as the dispatcher does at each tick

    listed = json.loads(run("callback", "list", "--request", request["id"]))

    assert [c["sequence"] for c in listed] == [3, 2, 1]
    assert json.loads(run("callback", "list", "--state", "dead")) == []
    again = json.loads(run("callback", "redeliver", listed[0]["id"]))
    assert (again["id"], again["state"]) == (listed[0]["id"], "pending")
    assert "no callback named" in run("callback", "redeliver", "nobody", fails=True)
    refused = run("forget", DATASET, "--record", "record-2", "--callback", "http://x/", fails=True)
    assert "not a URL with https" in refused


def test_the_secret_is_shown_and_replaced(served: None) -> None:
    first = json.loads(run("callback", "secret"))
    second = json.loads(run("callback", "secret", "--rotate"))
    assert first["secret"] != second["secret"] == json.loads(run("callback", "secret"))["secret"]
