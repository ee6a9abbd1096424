"""Digests by which the log binds what it does not tell: who is named, what a model is.

``app/ledger/fsck.py`` computes them again from the rows, so each is made of what a row holds and
comes back from the database as it went in.
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
"""In the place of a subject's pseudonym, so that every record is spelt in as many bytes."""
_SEQ_BYTES = 8


def of_document(document: Any) -> str:  # noqa: ANN401 - any JSON
    """Digest plain JSON values; a number counts by its value, not by how PostgreSQL spells it."""
    return hashlib.sha256(canonical_json({"of": plain(document)}).encode()).hexdigest()


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON values with every number a float, as JSONB does not tell 1e22 from 10^22."""
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
    """Digest what never changes of a dataset."""
    numbers = [row.feature_shape, row.feature_offset, row.feature_scale, row.classes]
    return of_document([row.name, row.feature_dtype, numbers])


def of_model(row: ModelRow | Row[Any]) -> str:
    """Digest what never changes of a model; its salt is among it, so no guess can be tested."""
    what = [row.name, row.dataset_id, row.weights_source, row.split_salt.hex()]
    return of_document([what, row.architecture, row.recipe])


def of_backbone(row: BackboneRow | Row[Any]) -> str:
    """Digest what never changes of a backbone."""
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
    """Return that of the records that a request's epoch marks at this moment."""
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
