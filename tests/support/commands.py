"""``expunge dataset`` in this process."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from app.cli.main import app

_runner = CliRunner()


def dataset_command(*arguments: object) -> Result:
    """Carry out a command and return how it ended."""
    return _runner.invoke(app, ["dataset", *map(str, arguments)])


def dataset_answer(*arguments: object) -> dict[str, Any]:
    """Carry out a command that succeeds; return the object that it prints."""
    ended = dataset_command(*arguments)
    assert ended.exit_code == 0, ended.output
    found: dict[str, Any] = json.loads(ended.stdout)
    return found
