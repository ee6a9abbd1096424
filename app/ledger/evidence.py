"""Evidence has an end: whom a request named is destroyed so long after it has ended.

Certificates, log and commitments stay and verify as before. What goes can find a person whose id
somebody guesses: keyed hashes of ids, what a caller named a request by, what opens commitments, and
what a person wrote. An open request keeps all of it, and so does a record that one names.

Models still have to know on which side of them a record was, because their certificates count it;
that stays as ``sides``.
"""

from datetime import timedelta

from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.orm import Session

from app.delivery.callbacks.tables import CallbackEndpointRow, CallbackEventRow
from app.domain.states import SubjectRequestStatus
from app.evidence import log
from app.ledger import repository
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow, SubjectRequestRow
from app.planning.tracking import Tracking
from app.registry.datasets import digests
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import RecordRow
from app.registry.membership import membership_at, membership_of
from app.registry.tables import ModelRow
from app.registry.training_set import TrainingSet
from app.runtime.database import Database
from app.runtime.database.queries import is_one_of

_REQUESTS_AT_ONCE = 100
_RECORDS_AT_ONCE = 5000


def destroy(database: Database, *, retention: timedelta) -> None:
    """Destroy evidence that is older than this, the oldest first, as much as one pass takes."""
    with database.transaction() as session:
        _of_requests(session, retention)
        session.flush()
        _of_subject_requests(session, retention)
    with database.transaction() as session:  # datasets are locked before requests
        _of_records(session, retention)
    with database.transaction() as session:  # what PostgreSQL's planner keeps of keys
        session.execute(select(func.sample_keys()))


def _of_requests(session: Session, retention: timedelta) -> None:
    request, endpoint = ForgetRequestRow, CallbackEndpointRow
    ended_at = func.coalesce(request.completed_at, request.refused_at)
    query = (
        select(request)
        .where(request.salt.is_not(None), ended_at <= func.clock_timestamp() - retention)
        .order_by(ended_at)
        .limit(_REQUESTS_AT_ONCE)
        .with_for_update(key_share=True, skip_locked=True)
    )
    ended = session.scalars(query).all()
    for row in ended:
        row.salt = row.request_digest = row.external_key = row.idempotency_key = None
        row.explanation = row.extension_reason = None
        records = repository.commitments_by_record(session, row.id)
        rows = digests.named(row.id, records, salt=None)
        log.append(session, "request.evidence_destroyed", request=row.id, rows=rows)
    if ended:  # a refused one might have been reopened: it waits for that no more
        mine = is_one_of(endpoint.request_id, [row.id for row in ended])
        session.execute(
            update(endpoint)
            .where(mine, endpoint.ended_at.is_(None))
            .values(ended_at=func.clock_timestamp())
        )


def _of_subject_requests(session: Session, retention: timedelta) -> None:
    row, part, event = SubjectRequestRow, ForgetRequestRow, CallbackEventRow
    query = (
        select(row)
        .where(
            row.salt.is_not(None),
            row.status.in_((SubjectRequestStatus.COMPLETED, SubjectRequestStatus.CANCELLED)),
            row.received_at <= func.clock_timestamp() - retention,
            ~exists().where(part.subject_request_id == row.id, part.salt.is_not(None)),
        )
        .limit(_REQUESTS_AT_ONCE)
        .with_for_update(key_share=True, skip_locked=True)
    )
    for ended in session.scalars(query).all():
        ended.salt = ended.request_digest = ended.subject_request_id = None
        endpoints = select(CallbackEndpointRow.id).where(
            CallbackEndpointRow.subject_request_id == ended.id
        )
        session.execute(delete(event).where(event.endpoint_id.in_(endpoints)))
        log.append(session, "subject_request.evidence_destroyed", subject_request=ended.id)


def _of_records(session: Session, retention: timedelta) -> None:
    """Destroy the pseudonyms of erased records that no request with evidence names.

    One dataset at a time: under its lock, no new request can name them.
    """
    record, named, request = RecordRow, ForgottenRecordRow, ForgetRequestRow
    over = (
        record.record_key.is_not(None),
        record.erased_at <= func.clock_timestamp() - retention,
        ~exists().where(
            named.record_seq == record.seq,
            request.id == named.request_id,
            request.salt.is_not(None),
        ),
    )
    oldest = select(record.dataset_id).where(*over).order_by(record.erased_at).limit(1)
    dataset_id = session.scalar(oldest)
    if dataset_id is None:
        return
    datasets.lock_dataset(session, dataset_id)
    models = select(ModelRow).where(ModelRow.dataset_id == dataset_id).order_by(ModelRow.id)
    locked = session.scalars(models.with_for_update(key_share=True)).all()
    mine = select(record).where(record.dataset_id == dataset_id, *over)
    rows = session.scalars(
        mine.order_by(record.erased_at).limit(_RECORDS_AT_ONCE).with_for_update()
    ).all()
    for model in locked:
        membership = membership_of(model)
        has_batches = model.tracking and Tracking.from_json(model.tracking).history is not None
        if membership is not None and has_batches and any(map(membership.includes, rows)):
            TrainingSet(session, model).keep_all()
    # Sides depend on nothing but the model and whose the record is.
    splits = [membership_at(model, through=0, after_epoch=0) for model in locked]
    for row in rows:
        row.sides = dict(split.side_of(row) for split in splits)
        row.record_key = row.subject_key = None
