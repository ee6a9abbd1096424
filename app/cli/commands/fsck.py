"""The check of the whole log, where the ledger is."""

from pathlib import Path
from typing import Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from app.cli.findings import end_with
from app.cli.options import option
from app.cli.output import conclude, say
from app.domain.errors import InvalidInputError, NoteError
from app.evidence.certificates.note import Checkpoint, NoteKey, open_checkpoint, origin_of
from app.evidence.certificates.trusted_keys import read_trusted_keys
from app.operations import fsck as ledger_fsck
from app.runtime.locations import database_at_rest
from app.runtime.settings import Settings
from app.services import witness_keys


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
