"""Commands over HTTP: runs."""

import json
from typing import Annotated

import typer

from app.cli.connection import connect, errors_in_words

run = typer.Typer(help="List, cancel and retry runs.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]


@run.command("list")
def list_runs(
    *,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only this state: queued, leased, running, published, failed or cancelled."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
) -> None:
    """List runs, newest first."""
    filters = {"state": state, "model": model}
    with errors_in_words(), connect() as client:
        _show(client.runs(**{name: value for name, value in filters.items() if value is not None}))


@run.command("cancel")
def cancel_run(run_id: RunId) -> None:
    """Cancel a queued or active run; its obligations wait for the model's next run."""
    with errors_in_words(), connect() as client:
        _show(client.cancel_run(run_id))


@run.command("retry")
def retry_run(run_id: RunId) -> None:
    """Start a new run like a failed or cancelled one."""
    with errors_in_words(), connect() as client:
        _show(client.retry_run(run_id))


def _show(document: object) -> None:
    typer.echo(json.dumps(document, indent=2))
