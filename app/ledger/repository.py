"""All SQL about requests, obligations and runs."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Row,
    String,
    and_,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased
from sqlalchemy.orm.attributes import set_committed_value

from app.domain.states import (
    ACTIVE_RUN_STATES,
    HELD_RUN_STATES,
    UNMET_OBLIGATION_STATES,
    ObligationState,
    RequestState,
    RunKind,
    RunState,
)
from app.evidence import log
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow, ObligationRow, RunRow
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import DatasetRow, RecordRow
from app.registry.tables import ModelRow
from app.runtime.database.queries import is_one_of, known, newest_first


def request(session: Session, request_id: str, *, lock: bool = False) -> ForgetRequestRow:
    """Return a forget request, or raise ``NotFoundError``; with ``lock``, locked and read again.

    Others may insert rows that refer to a locked request: certificates of several models account
    for it at the same time, and would wait for each other.
    """
    locked = {"key_share": True} if lock else None
    found = session.get(
        ForgetRequestRow, request_id, with_for_update=locked, populate_existing=lock
    )
    return known(found, "forget request", request_id)


def earlier_requests(
    session: Session, names: Collection[tuple[str, str, bytes]]
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return the requests with one of these ``names``: (caller, kind, keyed hash).

    A row has ``id``, ``api_key_id``, ``external_key``, ``idempotency_key``, ``request_digest``.
    """
    if not names:
        return []
    keys = [key for _, _, key in names]
    table = ForgetRequestRow
    query = select(
        table.id,
        table.api_key_id,
        table.external_key,
        table.idempotency_key,
        table.request_digest,
    ).where(
        is_one_of(table.api_key_id, {name[0] for name in names}),
        or_(is_one_of(table.external_key, keys), is_one_of(table.idempotency_key, keys)),
    )
    return session.execute(query).all()


def requests(
    session: Session,
    *,
    state: RequestState | None,
    model: str | None,
    external_keys: Collection[bytes] | None = None,
    after: tuple[datetime, str] | None,
    limit: int,
) -> Sequence[ForgetRequestRow]:
    """Return a page of requests, newest first, older than the cursor ``after``."""
    query = select(ForgetRequestRow)
    if state is not None:
        query = query.where(ForgetRequestRow.state == state)
    if external_keys is not None:
        query = query.where(is_one_of(ForgetRequestRow.external_key, external_keys))
    if model is not None:
        query = query.where(
            exists().where(
                ObligationRow.request_id == ForgetRequestRow.id,
                ObligationRow.model_id == ModelRow.id,
                ModelRow.name == model,
            )
        )
    received_at, row_id = ForgetRequestRow.received_at, ForgetRequestRow.id
    return session.scalars(newest_first(query, received_at, row_id, after=after, limit=limit)).all()


def requests_of_subject(session: Session, subject_request_id: str) -> Sequence[ForgetRequestRow]:
    """Return the requests that a subject request made, in the locking order of datasets."""
    query = (
        select(ForgetRequestRow)
        .join(DatasetRow, DatasetRow.id == ForgetRequestRow.dataset_id)
        .where(ForgetRequestRow.subject_request_id == subject_request_id)
    )
    return session.scalars(query.order_by(DatasetRow.name.collate("C"))).all()


def erased_at(session: Session, request_id: str) -> datetime | None:
    """Return when the last of the records that a request names was erased, None if none was."""
    named = ForgottenRecordRow
    erased = select(func.max(RecordRow.erased_at)).join(named, named.record_seq == RecordRow.seq)
    return session.scalar(erased.where(named.request_id == request_id))


def lock_requests(session: Session, request_ids: Collection[str]) -> Sequence[ForgetRequestRow]:
    """Lock requests as ``request`` does, in the order in which several are always locked."""
    if not request_ids:
        return []
    query = select(ForgetRequestRow).where(is_one_of(ForgetRequestRow.id, request_ids))
    locked = query.order_by(ForgetRequestRow.id.collate("C")).with_for_update(key_share=True)
    return session.scalars(locked.execution_options(populate_existing=True)).all()


def store_states(session: Session, requests: Collection[ForgetRequestRow]) -> None:
    """Write the changed states of requests in one statement; the session sends one for each."""
    values = ([row.id for row in requests], [row.state for row in requests])
    columns = (literal(each, ARRAY(String)) for each in values)
    new = func.unnest(*columns).table_valued("id", "state", name="new").render_derived()
    session.execute(
        update(ForgetRequestRow)
        .where(ForgetRequestRow.id == new.c.id)
        .values(state=new.c.state)
        .execution_options(synchronize_session=False, autoflush=False)
    )
    log.changed(session, ForgetRequestRow, values[0])
    for row in requests:
        set_committed_value(row, "state", row.state)


def _is_erasable() -> ColumnElement[bool]:
    """Return whether every model has forgotten a request's records, which may still be stored.

    Also those of a cancelled request: it gave up its answer, and they stay forgotten.
    """
    unmet = exists().where(
        ObligationRow.request_id == ForgetRequestRow.id,
        ObligationRow.state.in_(UNMET_OBLIGATION_STATES),
    )
    return or_(
        ForgetRequestRow.state == RequestState.CERTIFIED,
        and_(
            ForgetRequestRow.state == RequestState.CANCELLED,
            ForgetRequestRow.completed_at.is_(None),
            ~unmet,
        ),
    )


def erasable_requests(
    session: Session, request_ids: Collection[str] | None = None
) -> list[tuple[str, str]]:
    """Return (dataset id, id) of requests whose records can now be erased, by dataset.

    With ``request_ids``, only of those.
    """
    table = ForgetRequestRow
    query = select(table.dataset_id, table.id).where(_is_erasable())
    if request_ids is not None:
        query = query.where(is_one_of(table.id, request_ids))
    rows = session.execute(query.order_by(table.dataset_id, table.received_at))
    return [(dataset_id, request_id) for dataset_id, request_id in rows]


def erasable_request(session: Session, request_id: str, *, wait: bool) -> ForgetRequestRow | None:
    """Lock and return a request if it is erasable; without ``wait``, None if it is locked."""
    query = select(ForgetRequestRow).where(ForgetRequestRow.id == request_id, _is_erasable())
    return session.scalar(query.with_for_update(key_share=True, skip_locked=not wait))


def records_of(session: Session, request_id: str) -> Sequence[RecordRow]:
    """Return the records that a request names."""
    return session.scalars(
        select(RecordRow)
        .join(ForgottenRecordRow, ForgottenRecordRow.record_seq == RecordRow.seq)
        .where(ForgottenRecordRow.request_id == request_id)
        .order_by(RecordRow.seq)
    ).all()


def commitments_by_record(
    session: Session, request_id: str
) -> list[tuple[datasets.KeyedRecord, bytes]]:
    """Return the records that a request names as they are now, with its commitments to them."""
    columns = (getattr(RecordRow, name) for name in datasets.KeyedRecord._fields)
    query = (
        select(*columns, ForgottenRecordRow.commitment)
        .join(ForgottenRecordRow, ForgottenRecordRow.record_seq == RecordRow.seq)
        .where(ForgottenRecordRow.request_id == request_id)
    )
    return [(datasets.KeyedRecord(*row[:-1]), row[-1]) for row in session.execute(query)]


def commitments_of(session: Session, request_id: str) -> Sequence[bytes]:
    """Return the salted commitments of a request's records."""
    query = select(ForgottenRecordRow.commitment)
    return session.scalars(query.where(ForgottenRecordRow.request_id == request_id)).all()


def obligations_of_request(session: Session, request_id: str) -> Sequence[ObligationRow]:
    """Return what a request is owed."""
    return obligations_of_requests(session, [request_id])[request_id]


def obligations_of_requests(
    session: Session, request_ids: Collection[str]
) -> dict[str, list[ObligationRow]]:
    """Return what each of several requests is owed, as the database says now."""
    owed: dict[str, list[ObligationRow]] = {request_id: [] for request_id in request_ids}
    if not owed:
        return owed
    query = select(ObligationRow).where(is_one_of(ObligationRow.request_id, request_ids))
    now = query.order_by(ObligationRow.id).execution_options(populate_existing=True)
    for obligation in session.scalars(now):
        owed[obligation.request_id].append(obligation)
    return owed


def obligations_of_model(
    session: Session,
    model_id: str,
    states: Collection[ObligationState],
    *,
    limit: int | None = None,
) -> Sequence[ObligationRow]:
    """Return a model's obligations in the given states, in the order to lock their requests."""
    query = select(ObligationRow).where(
        ObligationRow.model_id == model_id, ObligationRow.state.in_(states)
    )
    return session.scalars(query.order_by(ObligationRow.request_id).limit(limit)).all()


def obligations_of_run(session: Session, run_id: str) -> Sequence[ObligationRow]:
    """Return the obligations that a run took on."""
    return session.scalars(select(ObligationRow).where(ObligationRow.run_id == run_id)).all()


def lock_models_of_request(session: Session, request_id: str) -> Sequence[ModelRow]:
    """Lock, in a fixed order, and return the models that owe a request something."""
    query = (
        select(ModelRow)
        .join(ObligationRow, ObligationRow.model_id == ModelRow.id)
        .where(ObligationRow.request_id == request_id)
        .order_by(ModelRow.id)
    )
    return session.scalars(query.with_for_update(of=ModelRow)).all()


def run(session: Session, run_id: str, *, lock: bool = False) -> RunRow:
    """Return a run, or raise ``NotFoundError``; with ``lock``, lock it and read it again."""
    return known(
        session.get(RunRow, run_id, with_for_update=lock or None, populate_existing=lock),
        "run",
        run_id,
    )


def most_urgent_run(session: Session, waiting: str) -> RunRow | None:
    """Lock and return the queued run to carry out first; None if there is none.

    Runs that answer a request come first, by the earliest deadline. Those due later than in a day
    are told apart by its hour alone: within one hour, the shortest comes first, as the newest run
    of its model tells, of the same kind if there was one. Then come other unlearning, and
    trainings in the order of their creation. ``waiting`` was just handed to a worker; others count
    once the dispatcher has recorded that it queued them, so that a run that failed is not tried
    again too soon.
    """
    deadline = (
        select(func.min(ForgetRequestRow.due_at))
        .join(ObligationRow, ObligationRow.request_id == ForgetRequestRow.id)
        .where(
            ObligationRow.model_id == RunRow.model_id,
            ObligationRow.state.in_(UNMET_OBLIGATION_STATES),
        )
        .correlate(RunRow)
        .scalar_subquery()
    )
    is_near = deadline < func.clock_timestamp() + timedelta(days=1)
    earlier = aliased(RunRow)
    newest = (
        select(func.extract("epoch", earlier.finished_at - earlier.started_at))
        .where(
            earlier.model_id == RunRow.model_id,
            earlier.state == RunState.PUBLISHED,
            deadline.is_not(None),
        )
        .order_by(earlier.created_at.desc())
        .limit(1)
        .correlate(RunRow)
    )
    alike = newest.where(earlier.kind == RunRow.kind)
    seconds = func.coalesce(alike.scalar_subquery(), newest.scalar_subquery())
    query = (
        select(RunRow)
        .where(
            RunRow.state == RunState.QUEUED,
            or_(RunRow.id == waiting, RunRow.enqueued_at.is_not(None)),
        )
        .order_by(
            case((is_near, deadline), else_=func.date_trunc("hour", deadline)).asc().nulls_last(),
            seconds.asc().nulls_last(),
            (RunRow.kind == RunKind.UNLEARN).desc(),
            RunRow.created_at,
            RunRow.id,
        )
        .limit(1)
    )
    return session.scalar(query.with_for_update(of=RunRow, skip_locked=True))


def active_run(session: Session, model_id: str, *, besides: RunKind | None = None) -> RunRow | None:
    """Return the model's run that is going, else one that is queued, if there is any.

    One kind may be left ``besides``.
    """
    query = select(RunRow).where(RunRow.model_id == model_id, RunRow.state.in_(ACTIVE_RUN_STATES))
    if besides is not None:
        query = query.where(RunRow.kind != besides)
    is_queued = RunRow.state == RunState.QUEUED
    return session.scalar(query.order_by(is_queued, RunRow.created_at).limit(1))


def lock_active_runs(session: Session, model_id: str) -> Sequence[RunRow]:
    """Lock and return all runs of a model that are queued or going, before the model is locked."""
    query = select(RunRow).where(RunRow.model_id == model_id, RunRow.state.in_(ACTIVE_RUN_STATES))
    locked = query.order_by(RunRow.created_at, RunRow.id).with_for_update()
    return session.scalars(locked.execution_options(populate_existing=True)).all()


def models_refilled(session: Session) -> Sequence[str]:
    """Return the ensembles whose refill has been taken by a worker."""
    query = select(RunRow.model_id).where(
        RunRow.kind == RunKind.REFILL, RunRow.state.in_(HELD_RUN_STATES)
    )
    return session.scalars(query).all()


def latest_run(session: Session, model_id: str, *kinds: RunKind) -> RunRow | None:
    """Return the model's newest run, of some kinds or any, whatever became of it."""
    query = select(RunRow).where(RunRow.model_id == model_id, RunRow.kind.in_(kinds or RunKind))
    return session.scalar(query.order_by(RunRow.created_at.desc(), RunRow.id).limit(1))


def expired_run(session: Session, *, lease_s: float) -> RunRow | None:
    """Lock and return a run whose worker has stopped responding; None if there is none.

    No worker can prolong its lease while Postgres is away, so after a start of Postgres every lease
    is valid for another ``lease_s`` seconds.
    """
    query = select(RunRow).where(
        RunRow.state.in_(HELD_RUN_STATES),
        RunRow.lease_expires_at < func.clock_timestamp(),
        func.pg_postmaster_start_time() < func.clock_timestamp() - timedelta(seconds=lease_s),
    )
    return session.scalar(query.limit(1).with_for_update(skip_locked=True))


def queued_runs(session: Session, *, enqueued_before: timedelta) -> Sequence[RunRow]:
    """Lock and return runs that were handed to the queue a while ago and still wait.

    Runs handed over in the future are included: the clock was set back.
    """
    now = func.clock_timestamp()
    query = select(RunRow).where(
        RunRow.state == RunState.QUEUED,
        or_(RunRow.enqueued_at < now - enqueued_before, RunRow.enqueued_at > now),
    )
    return session.scalars(query.with_for_update(skip_locked=True)).all()


def is_waiting(session: Session, *, longer_than_s: float) -> bool:
    """Return whether a run has been in the queue for longer than this."""
    since = func.clock_timestamp() - timedelta(seconds=longer_than_s)
    query = select(RunRow.id).where(RunRow.state == RunState.QUEUED, RunRow.enqueued_at < since)
    return session.scalar(query.limit(1)) is not None
