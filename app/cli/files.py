"""Files that a command is given."""

import json
import sys
from pathlib import Path
from typing import Any

from app.domain import strict_json
from app.domain.errors import InvalidInputError


def read_ids(source: Path | None) -> list[str]:
    """Return the ids in a file, one on each line; ``-`` is standard input, None no ids.

    Lines without a character are skipped.

    Raises:
        InvalidInputError: the file is not UTF-8, or holds no id.
        OSError: it cannot be read.
    """
    if source is None:
        return []
    stdin = str(source) == "-"
    name = "standard input" if stdin else str(source)
    content = sys.stdin.buffer.read() if stdin else source.read_bytes()
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    ids = []
    for number, line in enumerate(lines, 1):
        try:
            owners_id = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{name}: line {number} is not UTF-8") from error
        if owners_id:
            ids.append(owners_id)
    if not ids:
        raise InvalidInputError(f"{name} holds no id")
    return ids


def json_file(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or raise ``InvalidInputError``."""
    try:
        document = strict_json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidInputError(f"{file} does not hold JSON: {place}") from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"{file} does not hold a JSON object")
    return document
