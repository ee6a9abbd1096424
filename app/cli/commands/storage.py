"""``expunge storage``: stored objects and their keys."""

from typing import Annotated

import typer

from app.cli.findings import Tally
from app.cli.options import option
from app.cli.output import conclude, say
from app.evidence import log
from app.operations import storage_check
from app.operations.findings import Verdict
from app.operations.storage_check import Stores
from app.runtime.locations import database_at_rest
from app.runtime.settings import Settings
from app.storage.stores import earlier_wrapping, key_store, object_store

storage = typer.Typer(help="Stored objects and their keys.", no_args_is_help=True)


@storage.command()
def check() -> None:
    """Compare the object store and the key store with the ledger; exit with 1 on any fault.

    Faults are objects and keys that no row of the ledger names or that should be deleted, and rows
    without their object or key. Nothing is changed.
    """
    tally = Tally()
    settings = Settings()
    with database_at_rest(settings) as database:
        stores = Stores(
            database=database,
            objects=object_store(settings),
            keys=key_store(settings),
        )
        counts = storage_check.check(stores, report=tally.report)
    tally.conclude(
        f"{counts.objects} objects, {counts.keys} keys, {counts.rows} rows: "
        f"{tally[Verdict.PENDING]} pending, {tally[Verdict.FAULT]} fault",
        {"objects": counts.objects, "keys": counts.keys, "rows": counts.rows},
    )


@storage.command("rewrap-keys")
def rewrap_keys(
    *,
    before: Annotated[
        str,
        option(
            "What wraps the keys of periods now: directory, kms:KEY or vault:KEY.",
            "--from",
            metavar="WHERE",
        ),
    ],
) -> None:
    """Move the keys of periods to the key that the settings name. Stop the service first.

    A new period begins under that key, all objects' keys are wrapped again, and the old periods'
    keys are destroyed. If it is interrupted, run it again.
    """
    settings = Settings()
    with database_at_rest(settings) as database:
        keys = key_store(settings, before=earlier_wrapping(settings, before))
        surviving = keys.rotate()
        with database.transaction() as session:
            log.append(session, "storage_keys.rotated", data_keys=surviving)
    say(f"{surviving} keys are wrapped anew")
    conclude({"data_keys": surviving})
