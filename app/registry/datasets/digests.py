"""Digests that stand in the log for what it must not show: record numbers and dataset definitions.

``app/operations/fsck.py`` recomputes them from the rows, so each is computed from values that a
row holds and that the database returns unchanged.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from app.evidence import log
from app.registry.datasets.repository import KeyedRecord
from app.registry.datasets.tables import DatasetRow, RecordRow

NO_SUBJECT = bytes(32)
"""Replaces a missing subject's pseudonym, so that all records have the same length."""
_SEQ_BYTES = 8


def of_dataset(row: DatasetRow | Row[Any]) -> str:
    """Digest the part of a dataset that never changes."""
    return log.digest_of([row.name, row.schema, row.encoding, row.public])


def of_names(named: Iterable[tuple[KeyedRecord, bytes]]) -> str:
    """Digest a request's records: numbers, pseudonyms and salted commitments, by number."""
    digest = hashlib.sha256()
    for record, commitment in sorted(named, key=lambda pair: pair[0].seq):
        digest.update(_spelt(record.seq) + commitment + record.record_key)
        digest.update(record.subject_key or NO_SUBJECT)
    return digest.hexdigest()


def of_marks(seqs: Iterable[int]) -> str:
    """Digest the numbers of records."""
    return hashlib.sha256(b"".join(map(_spelt, sorted(seqs)))).hexdigest()


def marks(seqs: Sequence[int]) -> dict[str, Any]:
    """Return an entry's facts about the records forgotten since an epoch."""
    return {"marked": len(seqs), "marks": of_marks(seqs)}


def marks_of(session: Session, dataset_id: str, epoch: int) -> dict[str, Any]:
    """Return the digest of the records that an epoch marks now."""
    query = select(RecordRow.seq).where(
        RecordRow.dataset_id == dataset_id,
        RecordRow.forgotten_epoch == epoch,
    )
    return marks(session.scalars(query).all())


def returns_of(session: Session, dataset_id: str, epoch: int) -> dict[str, Any]:
    """Return an entry's facts about the records restored after this epoch."""
    query = select(RecordRow.seq).where(
        RecordRow.dataset_id == dataset_id,
        RecordRow.absences[func.cardinality(RecordRow.absences) - 1] == epoch,
    )
    return {"returns": of_marks(session.scalars(query))}


def _spelt(seq: int) -> bytes:
    return seq.to_bytes(_SEQ_BYTES)
