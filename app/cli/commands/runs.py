"""Commands over HTTP: runs."""

from typing import Annotated

import typer

from app.cli.connection import show_answer
from app.cli.options import argument, option

run = typer.Typer(help="List, show, cancel and retry runs.", no_args_is_help=True)

_RUNS = ("id", "model", "kind", "state", "phase", "epsilon", "created_at", "failure_reason")
RunId = Annotated[str, argument("RUN", "The run's id.")]


@run.command("list")
def list_runs(
    *,
    state: Annotated[
        str | None,
        option("Only this state: queued, leased, running, published, failed or cancelled."),
    ] = None,
    model: Annotated[str | None, option("Only this model.")] = None,
) -> None:
    """List runs, newest first."""
    show_answer(lambda client: client.runs(state=state, model=model), _RUNS)


@run.command("show")
def show_run(run_id: RunId) -> None:
    """Show a run: its plan, its progress, and why it failed."""
    show_answer(lambda client: client.run(run_id))


@run.command("cancel")
def cancel_run(run_id: RunId) -> None:
    """Cancel a queued or active run; its obligations wait for the model's next run."""
    show_answer(lambda client: client.cancel_run(run_id))


@run.command("retry")
def retry_run(run_id: RunId) -> None:
    """Start a new run like a failed or cancelled one."""
    show_answer(lambda client: client.retry_run(run_id))
