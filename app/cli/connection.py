"""The service's URL and key for the command line, and the output of errors."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import typer
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError

from app.client import ApiError, ExpungeClient
from app.domain.errors import ConfigurationError, ExpungeError
from app.settings import Settings
from app.storage.keyfiles import read_key_file


@contextmanager
def connect() -> Iterator[ExpungeClient]:
    """Open a client with the configured URL and key, or those that ``expunge init`` wrote."""
    settings = Settings()
    url = settings.api_url or f"http://{settings.host}:{settings.port}"
    if settings.api_key is not None:
        key = settings.api_key.get_secret_value()
    else:
        try:
            key = read_key_file(admin_key_file(settings)).decode().strip()
        except ConfigurationError as error:
            raise ConfigurationError("set EXPUNGE_API_KEY, or run 'expunge init' here") from error
    with ExpungeClient(url, key) as client:
        yield client


def admin_key_file(settings: Settings) -> Path:
    """The file of the first API key, written by ``expunge init``."""
    return settings.data_dir / "keys" / "admin-api-key"


@contextmanager
def service() -> Iterator[ExpungeClient]:
    """Open a client as ``connect`` does; print expected errors."""
    with errors_in_words(), connect() as client:
        yield client


def show(document: object) -> None:
    """Print an answer as JSON."""
    typer.echo(json.dumps(document, indent=2))


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Print an expected error as one line, with its details below, and exit with 1."""
    try:
        yield
    except tuple(_IN_WORDS) as error:
        lines = next(of for kind, of in _IN_WORDS.items() if isinstance(error, kind))(error)
        for line in lines:
            typer.secho(line, fg=None if line.startswith(" ") else "red", err=True)
        raise typer.Exit(1) from error


def _problem(error: ApiError) -> Iterator[str]:
    yield f"error: {error}"
    for problem in error.problem.get("problems", []):
        where = problem.get("field") or f"row {problem['row']}, column {problem['column']}"
        yield f"  {where}: {problem['reason']}"
    for unknown in error.problem.get("unknown", []):
        yield f"  unknown id: {unknown}"


def _settings(error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_input=False):
        name = "_".join(("EXPUNGE", *(str(part).upper() for part in fault["loc"])))
        yield f"error: {name}: {fault['msg']}"


_AWAY = "error: the service cannot be reached; start it with 'expunge up' or set EXPUNGE_API_URL"
_IN_WORDS: Mapping[type[Exception], Callable[[Any], Iterable[str]]] = {
    ApiError: _problem,
    ExpungeError: lambda error: [f"error: {error}"],
    TimeoutError: lambda error: [f"error: {error}"],
    ValidationError: _settings,
    DBAPIError: lambda _: ["error: the database does not answer"],
    OSError: lambda error: [f"error: {error.strerror}: {error.filename}"],
    httpx.TransportError: lambda _: [_AWAY],
    httpx.InvalidURL: lambda _: [_AWAY],
}
"""The first kind that fits decides."""
