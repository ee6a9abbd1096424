"""The check of the whole log, where the ledger is."""

from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from app.certificates.checkpoint import Checkpoint, open_checkpoint, origin_of
from app.certificates.note import NoteKey
from app.certificates.trusted_keys import read_trusted_keys
from app.cli.connection import errors_in_words
from app.key_files import trusted_keys_file
from app.locations import database_at_rest
from app.maintenance import fsck as ledger_fsck
from app.services import witness_keys
from app.settings import Settings


def fsck(
    *,
    trusted: Annotated[
        Path | None, typer.Option(help="Trusted keys; by default those from 'expunge init'.")
    ] = None,
    consistent_with: Annotated[
        list[Path] | None,
        typer.Option(help="A checkpoint kept elsewhere; may be repeated."),
    ] = None,
) -> None:
    """Check the whole log and every row of the ledger against it; exit with 1 on any fault."""
    with errors_in_words():
        settings = Settings()
        known = read_trusted_keys((trusted or trusted_keys_file(settings)).read_bytes())
        keys = [key.public_key for key in known.keys]
        kept = [_kept(path, keys) for path in consistent_with or ()]
        with database_at_rest(settings) as database:
            summary = ledger_fsck.check(
                database,
                keys=keys,
                report=_print,
                kept=kept,
                witnesses=witness_keys(settings),
            )
    typer.echo(
        f"{summary.size} entries, {summary.checkpoints} checkpoints, "
        f"{summary.certificates} certificates, {summary.rows} rows, root {summary.root.hex()}"
    )
    if summary.faults:
        typer.secho(f"{summary.faults} fault(s)", fg="red", err=True)
        raise typer.Exit(1)
    typer.secho("no fault", fg="green")


def _print(fault: ledger_fsck.Fault) -> None:
    typer.echo(f"{fault.where}: {fault.reason}")


def _kept(path: Path, keys: list[Ed25519PublicKey]) -> Checkpoint:
    note = path.read_bytes()
    return open_checkpoint(note, [NoteKey(origin_of(note), key) for key in keys])
