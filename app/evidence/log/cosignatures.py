"""Witnesses' cosignatures of the log, and the choice of the checkpoint to show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.domain.errors import NoteError, NotReadyError
from app.evidence.certificates.note import (
    MAX_SIGNATURES,
    NoteKey,
    WitnessKey,
    is_cosignature,
    open_checkpoint,
)
from app.evidence.log import checkpoints, signing_keys
from app.evidence.log.tables import LogCheckpointRow, LogCosignatureRow

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
    """Return the newest checkpoint if a witness has not cosigned it."""
    try:
        newest = checkpoints.latest(session)
    except NotReadyError:
        return None
    query = select(func.max(LogCosignatureRow.size)).where(
        LogCosignatureRow.witness == str(witness),
        LogCosignatureRow.size.between(1, newest.size),
    )
    cosigned = session.scalar(query) or 0
    return None if newest.size == cosigned else Uncosigned(newest.size, newest.note, cosigned)


def store(session: Session, witness: WitnessKey, *, size: int, line: str) -> None:
    """Store a witness's line for a checkpoint's note; an existing line is kept."""
    values = {"size": size, "witness": str(witness), "line": line}
    session.execute(insert(LogCosignatureRow).values(values).on_conflict_do_nothing())


def note_of(session: Session, checkpoint: LogCheckpointRow, witnesses: Sequence[WitnessKey]) -> str:
    """Return a checkpoint's note with the cosignatures of these witnesses.

    Lines that are no such cosignature are skipped: a verifier would refuse the whole note.
    """
    keys = {str(witness): witness for witness in witnesses}
    query = select(LogCosignatureRow).where(
        LogCosignatureRow.size == checkpoint.size, LogCosignatureRow.witness.in_(keys)
    )
    return checkpoint.note + "".join(_lines(checkpoint, session.scalars(query), keys))


def best_checkpoint(
    session: Session, *, least_size: int, witnesses: Sequence[WitnessKey]
) -> tuple[int, str]:
    """Return the checkpoint to show: the newest of the recent ones that most witnesses cosigned.

    It covers at least ``least_size`` entries and is signed by the key in use. Returned are how many
    it covers, and its note as ``note_of`` returns it.
    """
    best = checkpoints.latest(session)
    if not witnesses:
        return best.size, best.note
    in_use = signing_keys.note_key(session)
    row = LogCosignatureRow
    keys = {str(witness): witness for witness in witnesses}
    recent = select(row).where(row.size >= least_size, row.witness.in_(keys))
    claimed: dict[int, list[LogCosignatureRow]] = {}
    for cosignature in session.scalars(recent.order_by(row.size.desc()).limit(_RECENT)):
        claimed.setdefault(cosignature.size, []).append(cosignature)
    shown: list[str] = []
    for count, size in sorted(((len(claimed[size]), size) for size in claimed), reverse=True):
        if (count, size) < (len(shown), best.size):
            break
        found = session.get(LogCheckpointRow, size)
        if found is None or not _is_signed(found, in_use):
            continue
        lines = _lines(found, claimed[size], keys)
        if (len(lines), size) > (len(shown), best.size):
            best, shown = found, lines
    return best.size, best.note + "".join(shown)


def _lines(
    checkpoint: LogCheckpointRow,
    cosignatures: Iterable[LogCosignatureRow],
    keys: Mapping[str, WitnessKey],
) -> list[str]:
    """Return the cosignatures that fit into a note."""
    lines = [
        row.line
        for row in cosignatures
        if is_cosignature(row.line, checkpoint.note, keys[row.witness])
    ]
    return sorted(lines)[: MAX_SIGNATURES - 1]


def _is_signed(checkpoint: LogCheckpointRow, key: NoteKey) -> bool:
    try:
        open_checkpoint(checkpoint.note.encode(), [key])
    except NoteError:
        return False
    return True
