"""Callbacks on the command line."""

import json

from typer.testing import CliRunner

from app.cli.main import app
from tests.support.workshop import DATASET, Workshop

runner = CliRunner()


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
