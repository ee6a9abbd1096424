"""Queries for the rows that the log describes, with digests of their records.

The digests are those of ``app/registry/datasets/digests.py``, computed in Postgres.
"""

from typing import Any

from sqlalchemy import LargeBinary, Select, String, and_, exists, func, literal, select, true
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.sql import ColumnElement

from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow
from app.registry.datasets import digests
from app.registry.datasets.tables import DatasetRow, RecordRow

_EMPTY = digests.of_marks([])


def _digest(spelt: ColumnElement[bytes]) -> ColumnElement[str]:
    nothing = aggregate_order_by(literal(b"", LargeBinary), RecordRow.seq)
    joined = func.string_agg(spelt, nothing)
    return func.encode(func.sha256(joined), "hex", type_=String)


_SEQ = func.int8send(RecordRow.seq, type_=LargeBinary)
_MARKED = func.count().label("marked")
_MARKS = _digest(_SEQ).label("marks")

_COUNTS = (
    select(
        RecordRow.dataset_id,
        func.count().label("records"),
        func.count(RecordRow.erased_at).label("erased"),
    )
    .group_by(RecordRow.dataset_id)
    .subquery()
)

DATASETS: Select[*tuple[Any, ...]] = select(
    *DatasetRow.__table__.columns,
    func.coalesce(_COUNTS.c.records, 0).label("records"),
    func.coalesce(_COUNTS.c.erased, 0).label("erased"),
).outerjoin(_COUNTS, _COUNTS.c.dataset_id == DatasetRow.id)

MARKS_OF_NO_REQUEST: Select[*tuple[Any, ...]] = (
    select(
        func.concat(RecordRow.dataset_id, ":", RecordRow.forgotten_epoch).label("id"),
        _MARKED,
        _MARKS,
    )
    .where(
        RecordRow.forgotten_epoch.is_not(None),
        ~exists().where(
            ForgetRequestRow.dataset_id == RecordRow.dataset_id,
            ForgetRequestRow.forget_epoch == RecordRow.forgotten_epoch,
        ),
    )
    .group_by(RecordRow.dataset_id, RecordRow.forgotten_epoch)
)

_MARKED_AT = (
    select(RecordRow.dataset_id, RecordRow.forgotten_epoch, _MARKED, _MARKS)
    .where(RecordRow.forgotten_epoch.is_not(None))
    .group_by(RecordRow.dataset_id, RecordRow.forgotten_epoch)
    .subquery()
)
_ODD = func.generate_series(1, func.cardinality(RecordRow.absences), 2)
_FIRST = _ODD.table_valued("first").render_derived()
_FORGOTTEN = RecordRow.absences[_FIRST.c.first]
_RETURNED = RecordRow.absences[_FIRST.c.first + 1]
_RETURNED_AT = (
    select(
        RecordRow.dataset_id,
        _FORGOTTEN.label("gone_at"),
        _RETURNED.label("returned_at"),
        func.count().label("restored"),
        _digest(_SEQ).label("returns"),
    )
    .join(_FIRST, true())
    .group_by(RecordRow.dataset_id, "gone_at", "returned_at")
    .subquery()
)

RETURNS_OF_NO_REQUEST: Select[*tuple[Any, ...]] = select(
    func.concat(
        *(_RETURNED_AT.c.dataset_id, ":", _RETURNED_AT.c.gone_at, ":"),
        _RETURNED_AT.c.returned_at,
    ).label("id"),
).where(
    ~exists().where(
        ForgetRequestRow.dataset_id == _RETURNED_AT.c.dataset_id,
        ForgetRequestRow.forget_epoch == _RETURNED_AT.c.gone_at,
    )
)

_NAMED = (
    select(
        ForgottenRecordRow.request_id,
        func.count().label("named"),
        _digest(
            _SEQ.op("||")(ForgottenRecordRow.commitment)
            .op("||")(RecordRow.record_key)
            .op("||")(func.coalesce(RecordRow.subject_key, digests.NO_SUBJECT))
        ).label("names"),
        func.count().filter(RecordRow.erased_at.is_(None)).label("left"),
    )
    .join(RecordRow, RecordRow.seq == ForgottenRecordRow.record_seq)
    .group_by(ForgottenRecordRow.request_id)
    .subquery()
)

REQUESTS: Select[*tuple[Any, ...]] = (
    select(
        *(
            getattr(ForgetRequestRow, name)
            for name in (
                *("id", "dataset_id", "api_key_id", "state", "forget_epoch", "record_count"),
                "push_count",
                *("received_at", "due_at", "completed_at", "subject_request_id"),
            )
        ),
        ForgetRequestRow.due_soon_noted_at.is_not(None).label("due_soon_noted"),
        ForgetRequestRow.overdue_noted_at.is_not(None).label("overdue_noted"),
        func.coalesce(_NAMED.c.named, 0).label("named"),
        func.coalesce(_NAMED.c.names, _EMPTY).label("names"),
        func.coalesce(_NAMED.c.left, 0).label("left"),
        func.coalesce(_MARKED_AT.c.marked, 0).label("marked"),
        func.coalesce(_MARKED_AT.c.marks, _EMPTY).label("marks"),
        _RETURNED_AT.c.returned_at,
        func.coalesce(_RETURNED_AT.c.restored, 0).label("restored"),
        func.coalesce(_RETURNED_AT.c.returns, _EMPTY).label("returns"),
    )
    .outerjoin(_NAMED, _NAMED.c.request_id == ForgetRequestRow.id)
    .outerjoin(
        _MARKED_AT,
        and_(
            _MARKED_AT.c.dataset_id == ForgetRequestRow.dataset_id,
            _MARKED_AT.c.forgotten_epoch == ForgetRequestRow.forget_epoch,
        ),
    )
    .outerjoin(
        _RETURNED_AT,
        and_(
            _RETURNED_AT.c.dataset_id == ForgetRequestRow.dataset_id,
            _RETURNED_AT.c.gone_at == ForgetRequestRow.forget_epoch,
        ),
    )
)
