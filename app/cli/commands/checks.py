"""``expunge erase-check``, ``log fsck`` and ``storage``: searches and comparisons of all stores."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from app.access.pseudonyms import Pseudonyms
from app.cli.files import read_ids
from app.cli.options import argument, option
from app.cli.output import conclude, fail, say
from app.domain.errors import InvalidInputError, NoteError
from app.evidence import log
from app.evidence.certificates.note import Checkpoint, NoteKey, open_checkpoint, origin_of
from app.evidence.certificates.trusted_keys import read_trusted_keys
from app.operations import erase_check as search
from app.operations import fsck as ledger_fsck
from app.operations import storage_check
from app.operations.storage_check import Finding, Verdict
from app.runtime import locations
from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import database_at_rest
from app.runtime.settings import Settings
from app.services import open_blobs, witness_keys
from app.storage.stores import earlier_wrapping, key_store, object_store


class Tally(Counter[Verdict]):
    """Prints each finding and counts it by its verdict."""

    def __init__(self) -> None:
        super().__init__()
        self._findings: list[dict[str, object]] = []

    def report(self, finding: Finding, **more: object) -> None:
        """Print one finding; in JSON with more facts."""
        self[finding.verdict] += 1
        self._findings.append({**asdict(finding), **more})
        say(f"{finding.verdict}: {finding.where}: {finding.meaning}")

    def conclude(self, summary: str, facts: Mapping[str, object] | None = None) -> None:
        """Print a summary, in JSON with more facts; exit with 1 if there was a fault."""
        say(summary)
        conclude({"findings": self._findings, "faults": self[Verdict.FAULT], **(facts or {})})
        end_with(self[Verdict.FAULT])


def end_with(faults: int) -> None:
    """Say how many faults there are; exit with 1 if there is any."""
    if faults:
        fail(f"{faults} fault(s)")
        raise typer.Exit(1)
    say("no fault", fg="green")


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
    with database_at_rest(settings) as database:
        stores = search.Stores(
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


def fsck(
    *,
    trusted: Annotated[
        Path | None, option("Trusted keys; by default those from 'expunge init'.")
    ] = None,
    consistent_with: Annotated[
        list[Path] | None, option("A checkpoint kept elsewhere; may be repeated.")
    ] = None,
) -> None:
    """Check the whole log and every row of the ledger against it; exit with 1 on any fault."""
    found: list[dict[str, str]] = []

    def report(fault: ledger_fsck.Fault) -> None:
        say(f"{fault.where}: {fault.reason}")
        found.append({"where": fault.where, "reason": fault.reason})

    settings = Settings()
    known = read_trusted_keys((trusted or settings.trusted_keys_file).read_bytes())
    keys = [key.public_key for key in known.keys]
    kept = [_kept(path, keys) for path in consistent_with or ()]
    with database_at_rest(settings) as database:
        summary = ledger_fsck.check(
            database, keys=keys, report=report, kept=kept, witnesses=witness_keys(settings)
        )
    facts = {
        "entries": summary.size,
        "checkpoints": summary.checkpoints,
        "certificates": summary.certificates,
        "rows": summary.rows,
    }
    counts = ", ".join(f"{count} {name}" for name, count in facts.items())
    say(f"{counts}, root {summary.root.hex()}")
    conclude(facts | {"root": summary.root.hex(), "faults": found})
    end_with(summary.faults)


def _kept(path: Path, keys: list[Ed25519PublicKey]) -> Checkpoint:
    note = path.read_bytes()
    try:
        return open_checkpoint(note, [NoteKey(origin_of(note), key) for key in keys])
    except NoteError as error:
        raise InvalidInputError(f"{path} is not a checkpoint of this log: {error}") from error


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
        stores = storage_check.Stores(
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
