"""The life of an import: requested, leased by a worker, moved on batch by batch, ended."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import func
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, FileProblem, LeaseLostError
from app.domain.ids import new_id
from app.domain.places import Place, require_importable
from app.domain.states import ACTIVE_IMPORT_STATES, RETRYABLE_IMPORT_STATES, ImportState
from app.evidence import log
from app.registry.datasets import repository as datasets
from app.registry.datasets.imports import repository
from app.registry.datasets.service import PushResult
from app.registry.datasets.tables import ImportRow
from app.runtime.database.endings import require_live
from app.runtime.database.leases import in_future
from app.runtime.database.queries import stored
from app.runtime.database.wakeups import Signal, wake

RETRY_DELAY_S = 5.0
"""How long an import waits after a first failure that may pass; after further ones, longer."""

_LISTED_PROBLEMS = 20


@dataclass(frozen=True)
class SourceFile:
    """A file of an import.

    Attributes:
        name: its path below the import's place; of a single file, its name.
        version: differs when its content does.
        rows: how many it has.
    """

    name: str
    version: str
    rows: int


@dataclass(frozen=True)
class Position:
    """How far an import is: whole files, and rows of the next one."""

    files_done: int
    row_in_file: int


def request(session: Session, *, dataset: str, url: str, prefixes: Sequence[str]) -> ImportRow:
    """Record that files are to be read into a dataset; a worker does it."""
    place = Place.parse(url)
    require_importable(place, prefixes)
    owner = datasets.lock_dataset_named(session, dataset)
    require_live("dataset", owner)
    row = ImportRow(id=new_id("imp"), dataset_id=owner.id, url=place.url, state=ImportState.QUEUED)
    session.add(row)
    stored(session, row)
    log.append(session, "import.queued", **{"import": row.id}, dataset=owner.id)
    wake(session, Signal.DUE)
    return row


def lease(session: Session, import_id: str, *, lease_s: float) -> ImportRow | None:
    """Lease an import that waits, with a new fencing token; None if it does not."""
    row = repository.queued_one(session, import_id)
    if row is None:
        return None
    row.state = ImportState.RUNNING
    row.attempt += 1
    row.fencing_token += 1
    row.lease_expires_at = in_future(lease_s)
    row.started_at = func.coalesce(row.started_at, func.clock_timestamp())
    _record(session, row, attempt=row.attempt)
    return stored(session, row)


def holder(session: Session, import_id: str, fencing_token: int) -> ImportRow:
    """Lock and return an import still held under ``fencing_token``, or raise ``LeaseLostError``."""
    row = repository.locked(session, import_id)
    if row.fencing_token != fencing_token or row.state != ImportState.RUNNING:
        raise LeaseLostError("the import is held by another worker or is over")
    return row


def note_files(row: ImportRow, files: Sequence[SourceFile], at: Position) -> None:
    """Fix which files an import reads; later attempts read these."""
    row.files = [asdict(file) for file in files]
    row.total_rows = sum(file.rows for file in files)
    row.files_done, row.row_in_file = at.files_done, at.row_in_file


def position_of(row: ImportRow) -> Position:
    """Return how far an import is."""
    return Position(row.files_done, row.row_in_file)


def advance(row: ImportRow, result: PushResult, *, since: Position, at: Position) -> None:
    """Count a batch that the present transaction adds, and move on.

    Attempts are counted from there again.

    Raises:
        LeaseLostError: the import is elsewhere than where the batch begins.
    """
    if position_of(row) != since:
        raise LeaseLostError("the import was moved on by another worker")
    row.attempt = 1
    changed = len(result.changed_rows)
    row.added += result.added
    row.already_present += result.already_present
    row.changed += changed
    row.without_target = dict(Counter(row.without_target) + Counter(result.without_target))
    row.rows += result.added + result.already_present + changed
    row.files_done, row.row_in_file = at.files_done, at.row_in_file


def complete(session: Session, row: ImportRow) -> None:
    """End an import that has read all files."""
    _end(session, row, ImportState.COMPLETED)


def hand_back(session: Session, row: ImportRow) -> None:
    """Queue an import again that its worker was asked to stop; such an attempt does not count."""
    row.attempt -= 1
    _requeue(session, row)


def give_up_attempt(
    session: Session,
    row: ImportRow,
    *,
    reason: str,
    problems: Sequence[FileProblem] = (),
    permanent: bool,
    max_attempts: int,
) -> None:
    """End one attempt: queue the import again while attempts are left, else fail it.

    What it has added stays.
    """
    if not permanent and row.attempt < max_attempts:
        _requeue(session, row, delay_s=RETRY_DELAY_S * row.attempt)
        return
    row.failure_reason = reason
    row.problems = [asdict(problem) for problem in problems[:_LISTED_PROBLEMS]] or None
    _end(session, row, ImportState.FAILED)


def requeue_silent(session: Session, *, max_attempts: int) -> bool:
    """Give up one attempt whose worker is silent; False if there is none."""
    row = repository.expired_one(session)
    if row is None:
        return False
    if row.attempt < max_attempts:
        _requeue(session, row)
        return True
    row.failure_reason = f"the worker died {row.attempt} times: it may lack memory for these files"
    _end(session, row, ImportState.FAILED)
    return True


def cancel(session: Session, dataset: str, import_id: str) -> ImportRow:
    """End an import that waits or is going; what it has added stays."""
    row = repository.import_of(session, dataset, import_id, lock=True)
    if row.state not in ACTIVE_IMPORT_STATES:
        raise ConflictError(f"the import is {row.state}; it can no longer be cancelled")
    _end(session, row, ImportState.CANCELLED)
    return stored(session, row)


def retry(session: Session, dataset: str, import_id: str, *, prefixes: Sequence[str]) -> ImportRow:
    """Let an import go on that failed or was cancelled, where it was."""
    owner = datasets.lock_dataset_named(session, dataset)
    require_live("dataset", owner)
    row = repository.import_of(session, dataset, import_id, lock=True)
    if row.state not in RETRYABLE_IMPORT_STATES:
        raise ConflictError(f"the import is {row.state}; only one that failed can go on")
    require_importable(Place.parse(row.url), prefixes)
    row.attempt = 0
    row.failure_reason = row.problems = row.finished_at = None
    _requeue(session, row)
    return stored(session, row)


def end_all(session: Session, dataset_id: str, *, reason: str) -> None:
    """Cancel the imports of a dataset that is ending, and that is locked."""
    for row in repository.active_of(session, dataset_id):
        row.failure_reason = reason
        _end(session, row, ImportState.CANCELLED)


def _requeue(session: Session, row: ImportRow, *, delay_s: float = 0.0) -> None:
    row.state = ImportState.QUEUED
    row.fencing_token += 1
    row.lease_expires_at = in_future(delay_s)
    log.append(session, "import.requeued", **{"import": row.id})


def _end(session: Session, row: ImportRow, state: ImportState) -> None:
    row.state = state
    row.fencing_token += 1
    row.lease_expires_at = None
    row.finished_at = func.clock_timestamp()
    _record(session, row)


def _record(session: Session, row: ImportRow, **facts: int) -> None:
    log.append(session, f"import.{row.state}", **{"import": row.id}, **facts)
