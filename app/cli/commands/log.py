"""Commands about the transparency log."""

import typer

from app.cli.connection import service
from app.cli.output import conclude, say

log = typer.Typer(help="The transparency log.", no_args_is_help=True)


@log.command()
def checkpoint() -> None:
    """Print the newest signed checkpoint: keep it to prove later that nothing was rewritten."""
    with service() as client:
        note = client.log_checkpoint()
    say(note, nl=False)
    conclude({"checkpoint": note})
