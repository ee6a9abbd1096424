"""Commands about callbacks: their outcomes, and the secret that signs them."""

import json
from typing import Annotated

import typer

from app.cli.connection import connect, errors_in_words

callback = typer.Typer(help="Manage callbacks.", no_args_is_help=True)


@callback.command("list")
def list_callbacks(
    *,
    state: Annotated[
        str | None, typer.Option(help="Only this state: pending, delivered or dead.")
    ] = None,
    request: Annotated[str | None, typer.Option(help="Only this forget request.")] = None,
) -> None:
    """List callbacks, newest first. Dead ones were given up after the last attempt."""
    chosen = {"state": state, "request": request}
    with errors_in_words(), connect() as client:
        found = client.callbacks(**{name: value for name, value in chosen.items() if value})
        typer.echo(json.dumps(found, indent=1))


@callback.command()
def redeliver(
    callback_id: Annotated[str, typer.Argument(metavar="CALLBACK", help="Its id, as listed.")],
) -> None:
    """Deliver a callback now, whatever its state."""
    with errors_in_words(), connect() as client:
        typer.echo(json.dumps(client.redeliver(callback_id), indent=1))


@callback.command()
def secret(
    *, rotate: Annotated[bool, typer.Option("--rotate", help="Replace it first.")] = False
) -> None:
    """Show the secret that signs the callbacks of this API key."""
    with errors_in_words(), connect() as client:
        shown = client.rotate_callback_secret() if rotate else client.callback_secret()
        typer.echo(json.dumps(shown, indent=1))
