"""``expunge reconcile``, after a restore, and ``signing-key``: while the service is stopped."""

import os
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from app.cli.options import option
from app.cli.output import conclude, fail, say
from app.domain.errors import InvalidInputError
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log import actor, signing_keys
from app.evidence.log.signing_keys import ensure_trusted_keys, require_rotated
from app.operations import reconciliation
from app.operations.reconciliation import Findings
from app.runtime.database.engine import require_none
from app.runtime.embedded.home import require_unclaimed
from app.runtime.locations import database_at_rest, embedded_postgres, signing_key_file
from app.runtime.settings import Settings
from app.services import Services, open_services


def reconcile(
    *,
    apply: Annotated[
        bool, option("Change the ledger and shred unknown objects.", "--apply")
    ] = False,
) -> None:
    """After a restore: make the ledger match keys and objects. Stop the service first.

    Without --apply it only lists the changes, and exits with 1 if there are any. With it, objects
    unknown to the ledger are shredded for good: be sure that no newer backup exists.
    """
    settings = Settings()
    require_unclaimed(settings.data_dir)
    with embedded_postgres(settings):
        services = open_services(settings)
        try:
            require_none(services.database)
            found = _reconcile(services, apply=apply)
        finally:
            services.database.dispose()
    _tell(found)
    conclude(asdict(found) | {"orphans": sorted(found.orphans), "applied": apply})
    if not found.is_empty and not apply:
        fail("nothing was changed; --apply does it")
        raise typer.Exit(1)


def _reconcile(services: Services, *, apply: bool) -> Findings:
    known = ensure_trusted_keys(services.settings, services.database)
    with services.database.transaction() as session:
        found = reconciliation.reconcile(session, services.blobs, services.signer, known)
        stored = signing_keys.trusted(session)
        require_rotated(known, stored, services.signer)
        if not apply:
            session.rollback()
    if apply:
        stored.write(services.settings.trusted_keys_file)
        for blob_id in sorted(found.orphans):
            services.blobs.shred_orphan(blob_id)
        services.clean_up()
    return found


def _tell(found: Findings) -> None:
    if found.is_empty:
        say("the ledger agrees with keys and objects", fg="green")
        return
    for version in found.versions:
        say(f"retired: {version}")
    say(f"rewritten shards adopted: {found.shards_succeeded}; lost: {found.shards_lost}")
    say(f"records that count as forgotten again: {found.records_forgotten}")
    say(f"other unreadable objects: {found.other_objects}")
    say(f"objects newer than the backup, to be shredded: {len(found.orphans)}")
    if found.signing_key_replaced:
        say("the current signing key is now the one in use")
    for what in found.attention:
        say(what, fg="yellow")


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
