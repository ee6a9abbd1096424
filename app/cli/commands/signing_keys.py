"""Commands about the key that signs certificates and the log."""

import os
from datetime import datetime
from typing import Annotated

import typer

from app.cli.options import option
from app.cli.output import conclude, say
from app.domain.errors import InvalidInputError
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import actor, signing_keys
from app.evidence.log.signing_keys import ensure_trusted_keys, require_rotated
from app.runtime.database.engine import require_none
from app.runtime.embedded.home import require_unclaimed
from app.runtime.locations import database_at_rest, signing_key_file
from app.runtime.settings import Settings

signing_key = typer.Typer(help="The key that signs certificates.", no_args_is_help=True)


@signing_key.command()
def rotate(
    *,
    compromised_since: Annotated[
        str | None,
        option(
            "Since when the old key may have been in other hands, as in "
            "2026-03-01T00:00:00+00:00: its signatures from then on are not valid.",
            metavar="TIME",
        ),
    ] = None,
) -> None:
    """Create a new signing key and destroy the old private key. Stop the service first.

    Certificates signed by the old key stay valid: trusted-keys.json still lists it, with its dates.
    Those of a compromised key are re-signed with the new key.
    """
    since = None if compromised_since is None else _moment(compromised_since)
    settings = Settings()
    require_unclaimed(settings.data_dir)
    path = signing_key_file(settings)
    next_path = path.with_suffix(".next")
    trusted = settings.trusted_keys_file
    with actor.acting_as(actor.OPERATOR), database_at_rest(settings) as database:
        require_none(database)
        new = StatementSigner.from_file(next_path, create=True)
        known = ensure_trusted_keys(settings, database)
        with database.transaction() as session:
            if not signing_keys.is_in_use(session, new):  # else it was interrupted after this
                signing_keys.rotate(
                    session,
                    old=StatementSigner.from_file(path),
                    new=new,
                    compromised_since=since,
                )
            stored = signing_keys.trusted(session)
            require_rotated(known, stored, new, compromised_since=since)
    stored.write(trusted)
    # Overwrite the old private key, then move the new one into its place.
    with path.open("r+b") as file:
        file.write(os.urandom(path.stat().st_size))
        file.flush()
        os.fsync(file.fileno())
    next_path.replace(path)
    say(f"signing with {new.key_id}; give {trusted} to verifiers")
    conclude({"key_id": new.key_id, "trusted_keys": str(trusted)})


@signing_key.command("list")
def list_keys() -> None:
    """List all keys, the one in use first."""
    listed: list[dict[str, str | None]] = []
    with database_at_rest(Settings()) as database, database.transaction() as session:
        for key in signing_keys.all_keys(session):
            start = key.valid_from.isoformat() if key.valid_from else "the beginning"
            end = key.valid_until.isoformat() if key.valid_until else "now: it is in use"
            doubt = key.compromised_since
            note = "" if doubt is None else f", compromised since {doubt.isoformat()}"
            say(f"{key.id}  from {start} to {end}{note}")
            times = (key.valid_from, key.valid_until, doubt)
            names = ("valid_from", "valid_until", "compromised_since")
            told = (t.isoformat() if t else None for t in times)
            listed.append({"key_id": key.id, **dict(zip(names, told, strict=True))})
    conclude(listed)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError(
            "compromised-since: must be a time such as 2026-03-01T00:00:00Z"
        ) from error
    if moment.tzinfo is None:
        raise InvalidInputError("compromised-since: must name its time zone, as in ...T00:00:00Z")
    return moment
