"""Checks the stored cosignatures of the log's checkpoints."""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

from sqlalchemy import Connection, collate, select

from app.certificates.cosignature import WitnessKey, is_cosignature
from app.domain.errors import NoteError
from app.log.tables import LogCheckpointRow, LogCosignatureRow

_CHUNK = 4096


def check_cosignatures(
    connection: Connection,
    witnesses: Sequence[WitnessKey],
    *,
    fault: Callable[[str, str], None],
    remark: Callable[[str, str], None],
) -> None:
    """Check each cosignature, and remark on the witnesses whose cosignatures are not shown."""
    row, checkpoint = LogCosignatureRow, LogCheckpointRow
    query = (
        select(row.witness, row.size, row.line, checkpoint.note)
        .outerjoin(checkpoint, checkpoint.size == row.size)
        .order_by(collate(row.witness, "C"), row.size)
    )
    known = set(map(str, witnesses))
    with connection.execute(query, execution_options={"yield_per": _CHUNK}) as stored:
        for witness, cosignatures in groupby(stored, key=attrgetter("witness")):
            key = _key(witness)
            for _, size, line, note in cosignatures:
                where = f"cosignature of checkpoint {size} by {witness!a}"
                if key is None:
                    fault(where, "this is not a witness's key")
                elif note is None:
                    fault(where, "this checkpoint does not exist")
                elif not is_cosignature(line, note, key):
                    fault(where, "this witness did not sign it")
            if key is not None and witness not in known:
                meaning = "EXPUNGE_WITNESSES does not name it: its cosignatures are not shown"
                remark(f"witness {witness!a}", meaning)


def _key(witness: str) -> WitnessKey | None:
    try:
        return WitnessKey.from_text(witness)
    except NoteError:
        return None
