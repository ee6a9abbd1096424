"""Commands about callbacks: their outcomes, and the secret that signs them."""

from typing import Annotated

import typer

from app.cli.connection import show_answer
from app.cli.options import argument, option

_CALLBACKS = ("id", "type", "request", "state", "attempts", "failure")
callback = typer.Typer(help="Manage callbacks.", no_args_is_help=True)


@callback.command("list")
def list_callbacks(
    *,
    state: Annotated[str | None, option("Only this state: pending, delivered or dead.")] = None,
    request: Annotated[str | None, option("Only this forget request.")] = None,
) -> None:
    """List callbacks, newest first. Dead ones were given up after the last attempt."""
    show_answer(lambda client: client.callbacks(state=state, request=request), _CALLBACKS)


@callback.command()
def redeliver(
    callback_id: Annotated[str, argument("CALLBACK", "Its id, as listed.")],
) -> None:
    """Deliver a callback now, whatever its state."""
    show_answer(lambda client: client.redeliver(callback_id))


@callback.command()
def secret(*, rotate: Annotated[bool, option("Replace it first.", "--rotate")] = False) -> None:
    """Show the secret that signs the callbacks of this API key."""
    show_answer(
        lambda client: client.rotate_callback_secret() if rotate else client.callback_secret()
    )
