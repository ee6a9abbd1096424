"""Commands about the transparency log."""

from pathlib import Path
from typing import Annotated

import typer
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from app.certificates.checkpoint import Checkpoint, open_checkpoint, origin_of
from app.certificates.note import NoteKey
from app.cli.connection import connect, errors_in_words
from app.database import Database
from app.domain.errors import ConfigurationError
from app.ledger import fsck as ledger_fsck
from app.services import database_url, embedded_postgres, signing_key_file
from app.settings import Settings

log = typer.Typer(help="The transparency log.", no_args_is_help=True)


@log.command()
def checkpoint() -> None:
    """Print the newest signed checkpoint: keep it, to show later that nothing was rewritten."""
    with errors_in_words(), connect() as client:
        typer.echo(client.log_checkpoint(), nl=False)


@log.command()
def fsck(
    *,
    key: Annotated[
        Path | None, typer.Option(help="Public key; by default the one that 'expunge init' left.")
    ] = None,
    consistent_with: Annotated[
        list[Path] | None,
        typer.Option(help="A checkpoint that was kept elsewhere. May be repeated."),
    ] = None,
) -> None:
    """Check every entry, node, checkpoint and certificate in the database; exit 1 on any fault."""
    with errors_in_words():
        settings = Settings()
        public_key = _public_key(key or signing_key_file(settings).with_suffix(".pub"))
        kept = [_kept(path, public_key) for path in consistent_with or ()]
        with embedded_postgres(settings):
            database = Database(database_url(settings))
            summary = ledger_fsck.check(database, keys=[public_key], report=_print, kept=kept)
            database.dispose()
    typer.echo(
        f"{summary.size} entries, {summary.checkpoints} checkpoints, "
        f"{summary.certificates} certificates, root {summary.root.hex()}"
    )
    if summary.faults:
        typer.secho(f"{summary.faults} fault(s)", fg="red", err=True)
        raise typer.Exit(1)
    typer.secho("no fault", fg="green")


def _print(fault: ledger_fsck.Fault) -> None:
    typer.echo(f"{fault.where}: {fault.reason}")


def _kept(path: Path, public_key: Ed25519PublicKey) -> Checkpoint:
    note = path.read_bytes()
    return open_checkpoint(note, [NoteKey(origin_of(note), public_key)])


def _public_key(path: Path) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{path} is not a public key in PEM format") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError(f"{path} is not an Ed25519 public key")
    return key
