"""Files that a command is given: ids, JSON, and weights.

The service takes safetensors only and never loads PyTorch in its API: its files are converted here.
"""

import json
import sys
from pathlib import Path
from typing import Any

import typer

from app.domain import strict_json
from app.domain.errors import InvalidInputError
from app.domain.extras import TORCH, loaded


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


_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"


def read_weights(file: Path, key: str | None) -> bytes:
    """Return a file's weights as safetensors.

    Args:
        file: safetensors, or what ``torch.save`` wrote.
        key: of the latter: where the weights are in it; None looks for them.

    Raises:
        InvalidInputError: it cannot be converted; the message says why.
        MissingExtraError: PyTorch, which a file of its own needs, is not installed.
    """
    content = file.read_bytes()
    if not content.startswith((_ZIP, _PICKLE)):
        if key is not None:
            raise InvalidInputError(f"{file.name} is not a PyTorch file: --key is for these")
        return content
    checkpoint_file: Any = loaded("workers.checkpoint_file", extra=TORCH)
    try:
        weights: bytes = checkpoint_file.converted(content, key)
    except InvalidInputError as error:
        raise InvalidInputError(f"{file.name}: {error}") from error
    typer.echo(f"{file.name}: converted to {len(weights):,} bytes of safetensors", err=True)
    return weights
