"""``expunge erase-check``: searches for remains of an id."""

from functools import partial
from pathlib import Path
from typing import Annotated

from app.access.pseudonyms import Pseudonyms
from app.cli.files import read_ids
from app.cli.findings import Tally
from app.cli.options import argument, option
from app.cli.output import say
from app.operations import erase_check as search
from app.operations.erase_check import Stores
from app.operations.findings import Verdict
from app.runtime import locations
from app.runtime.embedded import EmbeddedServers
from app.runtime.settings import Settings
from app.services import open_blobs


def erase_check(
    owners_id: Annotated[
        str, argument("ID", "A record's or a subject's id; - reads ids from standard input.")
    ],
    *,
    dataset: Annotated[str, option("The dataset that the id belongs to.")],
) -> None:
    """Search every store for remains of an id; of several, given one a line, each by itself.

    Searches the ledger, shards, cached features, all objects, Redis and the embedded servers' log
    files. Exits with 1 if an id itself or a row of a completed request is found.
    """
    tally = Tally()
    ids = read_ids(Path("-")) if owners_id == "-" else [owners_id]
    settings = Settings()
    with locations.database_at_rest(settings) as database:
        stores = Stores(
            database=database,
            blobs=open_blobs(settings, database),
            redis=locations.redis_connection(settings),
            pseudonyms=Pseudonyms.from_file(locations.pseudonym_key_file(settings)),
            logs=EmbeddedServers(settings.data_dir).postgres.log.parent,
        )
        for number, each in enumerate(ids, 1):
            if len(ids) > 1:
                say(f"id {number} of {len(ids)}:", bold=True)
            report = partial(tally.report, id=number)
            before = tally.total()
            search.check(stores, dataset=dataset, owners_id=each, report=report)
            if tally.total() == before:
                say("nothing is known of this id: is it spelled as in the records?", fg="yellow")
    tally.conclude(", ".join(f"{tally[verdict]} {verdict}" for verdict in Verdict))
