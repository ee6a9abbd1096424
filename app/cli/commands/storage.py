"""``expunge storage``: stored objects and their keys."""

import typer

from app.cli.connection import errors_in_words
from app.cli.findings import Tally
from app.locations import database_at_rest, key_store_dir, object_store
from app.maintenance import storage_check
from app.maintenance.findings import Verdict
from app.maintenance.storage_check import Stores
from app.settings import Settings
from app.storage.file_keys import FileKeyStore

storage = typer.Typer(help="Stored objects and their keys.", no_args_is_help=True)


@storage.callback()
def _group() -> None:
    """Make ``check`` a subcommand even though it is the only one."""


@storage.command()
def check() -> None:
    """Compare the object store and the key store with the ledger; exit with 1 on any fault.

    Faults are objects and keys that no row of the ledger names or that should be deleted, and rows
    without their object or key. Nothing is changed.
    """
    tally = Tally()
    with errors_in_words():
        settings = Settings()
        with database_at_rest(settings) as database:
            stores = Stores(
                database=database,
                objects=object_store(settings),
                keys=FileKeyStore(key_store_dir(settings)),
            )
            counts = storage_check.check(stores, report=tally.report)
    tally.conclude(
        f"{counts.objects} objects, {counts.keys} keys, {counts.rows} rows: "
        f"{tally[Verdict.PENDING]} pending, {tally[Verdict.FAULT]} fault",
        {"objects": counts.objects, "keys": counts.keys, "rows": counts.rows},
    )
