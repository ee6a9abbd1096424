"""Files that a command is given."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from app.domain.errors import InvalidInputError


def existing_file(says: str) -> Any:  # noqa: ANN401 - as typer.Option
    """Return an option that names a file which is there, with its help."""
    return typer.Option(exists=True, dir_okay=False, help=says)


Trusted = Annotated[
    Path | None,
    existing_file("The operator's trusted-keys.json; by default the one from 'expunge init' here."),
]


def json_file(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or raise ``InvalidInputError``."""
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{file} does not hold JSON") from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"{file} does not hold a JSON object")
    return document
