"""JSON files that a command is given."""

import json
from pathlib import Path
from typing import Any

from app.domain.errors import InvalidInputError


def json_file(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or raise ``InvalidInputError``."""
    try:
        document = json.loads(file.read_text())
    except ValueError as error:
        raise InvalidInputError(f"{file} does not hold JSON") from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"{file} does not hold a JSON object")
    return document
