"""Commands about the key that signs certificates and the log."""

import os
from pathlib import Path

import typer

from app.certificates.signing import StatementSigner
from app.certificates.trusted_keys import remember_key
from app.cli.connection import errors_in_words
from app.ledger import actor, signing_keys
from app.services import database_at_rest, public_key_file, signing_key_file
from app.settings import Settings

signing_key = typer.Typer(help="The key that signs certificates.", no_args_is_help=True)


@signing_key.command()
def rotate() -> None:
    """Take a new signing key and destroy the old private key. Stop the service before.

    Certificates that the old key signed stay valid: its public half stays listed, with its dates.
    """
    with errors_in_words():
        settings = Settings()
        path = signing_key_file(settings)
        next_path = path.with_suffix(".next")
        new = StatementSigner.from_file(next_path, create=True)
        with (
            actor.acting_as(actor.OPERATOR),
            database_at_rest(settings) as database,
            database.transaction() as session,
        ):
            if not signing_keys.is_in_use(session, new):  # else it was interrupted after this
                signing_keys.rotate(session, old=StatementSigner.from_file(path), new=new)
        _replace(path, next_path)
        remember_key(public_key_file(settings), new.public_key_pem)
    typer.echo(f"signing with {new.key_id}; give the new public key to whoever verifies")


@signing_key.command("list")
def list_keys() -> None:
    """List all keys, the one in use first."""
    with (
        errors_in_words(),
        database_at_rest(Settings()) as database,
        database.transaction() as session,
    ):
        for key in signing_keys.all_keys(session):
            start = key.valid_from.isoformat() if key.valid_from else "the beginning"
            end = key.valid_until.isoformat() if key.valid_until else "now: it is in use"
            typer.echo(f"{key.id}  from {start} to {end}")


def _replace(path: Path, new: Path) -> None:
    """Overwrite the old private key, then put the new one in its place."""
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
