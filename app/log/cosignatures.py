"""Witnesses' cosignatures of the log, and the choice of the checkpoint to show."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.certificates.checkpoint import open_checkpoint
from app.certificates.cosignature import WitnessKey
from app.certificates.note import NoteKey
from app.domain.errors import NoteError, NotReadyError
from app.log import checkpoints
from app.log.tables import LogCheckpointRow, LogCosignatureRow

_RECENT = 64


@dataclass(frozen=True)
class Uncosigned:
    """A checkpoint that a witness has not cosigned.

    Attributes:
        size: how many entries it covers.
        note: its note, signed with the log's key.
        old_size: size of the checkpoint that the witness cosigned last; 0 before the first.
    """

    size: int
    note: str
    old_size: int


def uncosigned(session: Session, witness: WitnessKey) -> Uncosigned | None:
    """Return the newest checkpoint, or None if a witness has cosigned it."""
    query = select(func.max(LogCosignatureRow.size))
    cosigned = session.scalar(query.where(LogCosignatureRow.witness == str(witness))) or 0
    try:
        newest = checkpoints.latest(session)
    except NotReadyError:
        return None
    return None if newest.size == cosigned else Uncosigned(newest.size, newest.note, cosigned)


def store(session: Session, witness: WitnessKey, *, size: int, line: str) -> None:
    """Store a witness's line for a checkpoint's note; an existing line is kept."""
    values = {"size": size, "witness": str(witness), "line": line}
    session.execute(insert(LogCosignatureRow).values(values).on_conflict_do_nothing())


def note_of(session: Session, checkpoint: LogCheckpointRow) -> str:
    """Return a checkpoint's note with the lines of all witnesses."""
    query = select(LogCosignatureRow.line).where(LogCosignatureRow.size == checkpoint.size)
    lines = session.scalars(query.order_by(LogCosignatureRow.witness)).all()
    return checkpoint.note + "".join(lines)


def best_checkpoint(session: Session, *, least_size: int, in_use: NoteKey) -> LogCheckpointRow:
    """Return the checkpoint to show: among recent ones, the newest with the most cosignatures.

    Args:
        session: a session of the ledger.
        least_size: how many entries it must cover.
        in_use: the key in use, which must have signed it.

    Raises:
        NotReadyError: none has been signed yet.
    """
    row = LogCosignatureRow
    recent = select(row).where(row.size >= least_size).order_by(row.size.desc()).limit(_RECENT)
    counts: dict[int, int] = {}
    for cosignature in session.scalars(recent):
        counts[cosignature.size] = counts.get(cosignature.size, 0) + 1
    for size in sorted(counts, key=lambda size: (counts[size], size), reverse=True):
        found = session.get(LogCheckpointRow, size)
        if found is not None and _is_signed(found, in_use):
            return found
    return checkpoints.latest(session)


def _is_signed(checkpoint: LogCheckpointRow, key: NoteKey) -> bool:
    try:
        open_checkpoint(checkpoint.note.encode(), [key])
    except NoteError:
        return False
    return True
