"""Digests in the log of what it must not show: who is named, what a model is.

``app/ledger/fsck.py`` computes them again from the rows, so each is made of values that a row holds
and that the database returns unchanged.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from app.backbones.tables import BackboneRow
from app.datasets.repository import KeyedRecord
from app.datasets.tables import DatasetRow, RecordRow
from app.ledger.log import canonical_json
from app.ledger.tables import ForgetRequestRow
from app.registry.tables import ModelRow

NO_SUBJECT = bytes(32)
"""Replaces a missing subject's pseudonym, so that all records have equally many bytes."""
_SEQ_BYTES = 8


def of_document(document: Any) -> str:  # noqa: ANN401 - any JSON
    """Digest plain JSON values; a number counts by its value, not by how PostgreSQL writes it."""
    return hashlib.sha256(canonical_json({"of": plain(document)}).encode()).hexdigest()


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON values with every number a float: to JSONB, 1e22 and 10^22 are the same."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return float(value) + 0.0  # and has no negative zero
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def of_dataset(row: DatasetRow | Row[Any]) -> str:
    """Digest the part of a dataset that never changes."""
    numbers = [row.feature_shape, row.feature_offset, row.feature_scale, row.classes]
    return of_document([row.name, row.feature_dtype, numbers])


def of_model(row: ModelRow | Row[Any]) -> str:
    """Digest the part of a model that never changes; its salt prevents testing of guesses."""
    what = [row.name, row.dataset_id, row.weights_source, row.split_salt.hex()]
    return of_document([what, row.architecture, row.recipe])


def of_backbone(row: BackboneRow | Row[Any]) -> str:
    """Digest the part of a backbone that never changes."""
    return of_document([row.name, row.source, row.architecture, row.input_shape, row.classes])


def of_names(named: Iterable[tuple[KeyedRecord, bytes]]) -> str:
    """Digest whom a request names: numbers, pseudonyms and salted commitments, by number."""
    digest = hashlib.sha256()
    for record, commitment in sorted(named, key=lambda pair: pair[0].seq):
        digest.update(_spelt(record.seq) + commitment + record.record_key)
        digest.update(record.subject_key or NO_SUBJECT)
    return digest.hexdigest()


def of_marks(seqs: Iterable[int]) -> str:
    """Digest the numbers of records."""
    return hashlib.sha256(b"".join(map(_spelt, sorted(seqs)))).hexdigest()


def marks(seqs: Sequence[int]) -> dict[str, Any]:
    """Return what an entry says about the records that are forgotten since one epoch."""
    return {"marked": len(seqs), "marks": of_marks(seqs)}


def marks_of(session: Session, request: ForgetRequestRow) -> dict[str, Any]:
    """Return the digest of the records that a request's epoch marks at this moment."""
    query = select(RecordRow.seq).where(
        RecordRow.dataset_id == request.dataset_id,
        RecordRow.forgotten_epoch == request.forget_epoch,
    )
    return marks(session.scalars(query).all())


def returns_of(session: Session, request: ForgetRequestRow) -> dict[str, Any]:
    """Return what an entry says about the records that a cancelled request gave back."""
    query = select(RecordRow.seq).where(
        RecordRow.dataset_id == request.dataset_id,
        RecordRow.absences[func.cardinality(RecordRow.absences) - 1] == request.forget_epoch,
    )
    return {"returns": of_marks(session.scalars(query))}


def _spelt(seq: int) -> bytes:
    return seq.to_bytes(_SEQ_BYTES)
