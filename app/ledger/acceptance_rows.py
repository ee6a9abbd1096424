"""The rows of new forget requests, inserted a statement a table."""

from collections.abc import Sequence

from sqlalchemy import ARRAY, BigInteger, LargeBinary, String, bindparam, insert, text
from sqlalchemy.orm import Session

from app.datasets import repository as datasets
from app.datasets.repository import KeyedRecord
from app.ledger.tables import ForgetRequestRow, ObligationRow

_REQUEST = (
    "id",
    "dataset_id",
    "api_key_id",
    "external_key",
    "idempotency_key",
    "request_digest",
    "state",
    "salt",
    "forget_epoch",
    "record_count",
    "received_at",
    "due_at",
    "subject_request_id",
    "callback_count",
)
_OBLIGATION = ("id", "request_id", "model_id", "state", "basis")
_RECORDS = text(
    """
    INSERT INTO forget_request_records (request_id, record_seq, commitment)
    SELECT * FROM unnest(:requests, :seqs, :commitments)
    """
).bindparams(
    bindparam("requests", type_=ARRAY(String)),
    bindparam("seqs", type_=ARRAY(BigInteger)),
    bindparam("commitments", type_=ARRAY(LargeBinary)),
)


def insert_requests(session: Session, rows: Sequence[ForgetRequestRow]) -> None:
    """Insert requests."""
    values = [{name: getattr(row, name) for name in _REQUEST} for row in rows]
    session.execute(insert(ForgetRequestRow.__table__), values)  # type: ignore[arg-type]


def insert_records(
    session: Session, named: Sequence[tuple[str, Sequence[tuple[KeyedRecord, bytes]]]]
) -> None:
    """Insert the records that requests name, with their commitments."""
    rows = [
        (request_id, record.seq, commitment)
        for request_id, records in named
        for record, commitment in records
    ]
    for batch in datasets.batches(rows):
        requests, seqs, commitments = (list(column) for column in zip(*batch, strict=True))
        session.execute(_RECORDS, {"requests": requests, "seqs": seqs, "commitments": commitments})


def insert_obligations(session: Session, rows: Sequence[ObligationRow]) -> None:
    """Insert open obligations."""
    if rows:
        values = [{name: getattr(row, name) for name in _OBLIGATION} for row in rows]
        session.execute(insert(ObligationRow.__table__), values)  # type: ignore[arg-type]
