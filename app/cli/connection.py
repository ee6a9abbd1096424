"""The service's URL and key for the command line, and the output of errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
def errors_in_words() -> Iterator[None]:
    """Print an expected error as one line and exit with 1."""
    try:
        yield
    except ApiError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        for problem in error.problem.get("problems", []):
            where = problem.get("field") or f"row {problem['row']}, column {problem['column']}"
            typer.echo(f"  {where}: {problem['reason']}", err=True)
        for unknown in error.problem.get("unknown", []):
            typer.echo(f"  unknown id: {unknown}", err=True)
        raise typer.Exit(1) from error
    except (ExpungeError, TimeoutError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    except ValidationError as error:
        for fault in error.errors(include_input=False):
            name = "_".join(("EXPUNGE", *(str(part).upper() for part in fault["loc"])))
            typer.secho(f"error: {name}: {fault['msg']}", fg="red", err=True)
        raise typer.Exit(1) from error
    except DBAPIError as error:
        typer.secho("error: the database does not answer", fg="red", err=True)
        raise typer.Exit(1) from error
    except OSError as error:
        typer.secho(f"error: {error.strerror}: {error.filename}", fg="red", err=True)
        raise typer.Exit(1) from error
    except (httpx.TransportError, httpx.InvalidURL) as error:
        typer.secho(
            "error: the service cannot be reached; start it with 'expunge up' or set "
            "EXPUNGE_API_URL",
            fg="red",
            err=True,
        )
        raise typer.Exit(1) from error
