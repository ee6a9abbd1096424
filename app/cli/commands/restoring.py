"""``expunge reconcile``: after a restore from a backup."""

from dataclasses import asdict
from typing import Annotated

import typer

from app.cli.options import option
from app.cli.output import conclude, fail, say
from app.evidence.log import signing_keys
from app.evidence.log.signing_keys import ensure_trusted_keys, require_rotated
from app.operations import reconciliation
from app.operations.reconciliation import Findings
from app.runtime.database.engine import require_none
from app.runtime.embedded.home import require_unclaimed
from app.runtime.locations import embedded_postgres
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
