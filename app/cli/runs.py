"""Commands over HTTP: runs."""

from typing import Annotated

import typer

from app.cli.connection import service, show

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
    with service() as client:
        show(client.runs(state=state, model=model))


@run.command("cancel")
def cancel_run(run_id: RunId) -> None:
    """Cancel a queued or active run; its obligations wait for the model's next run."""
    with service() as client:
        show(client.cancel_run(run_id))


@run.command("retry")
def retry_run(run_id: RunId) -> None:
    """Start a new run like a failed or cancelled one."""
    with service() as client:
        show(client.retry_run(run_id))
