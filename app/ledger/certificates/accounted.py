"""All SQL about what the certificates of a lineage account for."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    and_,
    exists,
    func,
    insert,
    literal,
    select,
    true,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.ledger.tables import AccountedRequestRow, ForgetRequestRow, ForgottenRecordRow
from app.registry.datasets.tables import RecordRow
from app.registry.tables import VersionRow
from app.runtime.database.queries import is_one_of

LineageKey = tuple[str, int]
"""A lineage's model, and the number of its first version."""


class NamedRecord(NamedTuple):
    """A record as one request names it."""

    seq: int
    record_key: bytes
    subject_key: bytes | None
    forgotten_epoch: int | None
    request_id: str
    commitment: bytes


def named_by(session: Session, key: LineageKey, request_ids: Collection[str]) -> list[NamedRecord]:
    """Return what requests name that the certificates of a lineage do not account for yet.

    It is ordered by request, in the order of their arrival.
    """
    if not request_ids:
        return []
    return _named(session, is_one_of(ForgetRequestRow.id, request_ids), _is_missing(key))


def named_between(
    session: Session, key: LineageKey, *, dataset_id: str, after: int, through: int
) -> list[NamedRecord]:
    """Do as ``named_by`` does for the requests after an epoch and up to another one.

    Cancelled ones are included.
    """
    request = ForgetRequestRow
    return _named(
        session,
        request.dataset_id == dataset_id,
        request.forget_epoch > after,
        request.forget_epoch <= through,
        _is_missing(key),
    )


def named_of(session: Session, request_id: str) -> list[NamedRecord]:
    """Return what one request names."""
    return _named(session, ForgetRequestRow.id == request_id)


def named_of_lineage(session: Session, key: LineageKey) -> list[NamedRecord]:
    """Return all that the certificates of a lineage account for."""
    return _named(session, _is_there(key, ForgetRequestRow.id))


def _of(key: LineageKey) -> ColumnElement[bool]:
    model_id, since_version = key
    row = AccountedRequestRow
    return and_(row.model_id == model_id, row.since_version == since_version)


def _is_there(key: LineageKey, request_id: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    return exists().where(_of(key), AccountedRequestRow.request_id == request_id)


def _is_missing(key: LineageKey) -> ColumnElement[bool]:
    """Return whether a request is not accounted for, looked up for each request by itself.

    As an anti-join, PostgreSQL might read all that is accounted for.
    """
    number = select(AccountedRequestRow.number).where(
        _of(key), AccountedRequestRow.request_id == ForgetRequestRow.id
    )
    return number.correlate(ForgetRequestRow).scalar_subquery().is_(None)


def _named(session: Session, *conditions: ColumnElement[bool]) -> list[NamedRecord]:
    record, request, named = RecordRow, ForgetRequestRow, ForgottenRecordRow
    query = (
        select(
            *(record.seq, record.record_key, record.subject_key, record.forgotten_epoch),
            *(request.id, named.commitment),
        )
        .join(named, named.record_seq == record.seq)
        .join(request, request.id == named.request_id)
        .where(*conditions)
        .order_by(request.forget_epoch, request.id)
    )
    return [NamedRecord._make(row) for row in session.execute(query)]


def records_among(session: Session, key: LineageKey, seqs: Collection[int]) -> set[int]:
    """Return which of the records an accounted request of a lineage names."""
    if not seqs:
        return set()
    numbers = func.unnest(literal(list(seqs), ARRAY(BigInteger)))
    asked = numbers.table_valued("seq", name="asked").render_derived()
    # One is enough: a record may have been named any number of times.
    earlier = (
        select(literal(1).label("one"))
        .where(
            ForgottenRecordRow.record_seq == asked.c.seq,
            _is_there(key, ForgottenRecordRow.request_id),
        )
        .limit(1)
        .lateral()
    )
    return set(session.scalars(select(asked.c.seq).join(earlier, true())))


def last_of(session: Session, key: LineageKey) -> AccountedRequestRow | None:
    """Return the last request of a lineage, with the totals up to it."""
    query = select(AccountedRequestRow).where(_of(key))
    return session.scalar(query.order_by(AccountedRequestRow.number.desc()).limit(1))


def all_of(session: Session, key: LineageKey) -> Sequence[AccountedRequestRow]:
    """Return all requests of a lineage, in the order in which they were accounted for."""
    query = select(AccountedRequestRow).where(_of(key))
    return session.scalars(query.order_by(AccountedRequestRow.number)).all()


def place_of(
    session: Session, key: LineageKey, request_id: str
) -> tuple[AccountedRequestRow | None, AccountedRequestRow | None]:
    """Return a request of a lineage and the one before it; None for one that is not there."""
    mine = AccountedRequestRow.request_id == request_id
    row = session.scalar(select(AccountedRequestRow).where(_of(key), mine))
    if row is None or row.number == 1:
        return row, None
    return row, session.get_one(AccountedRequestRow, (*key, row.number - 1))


def covered_through(session: Session, key: LineageKey) -> int:
    """Return the epoch that the versions of a lineage cover so far, 0 without one."""
    model_id, since_version = key
    query = select(func.max(VersionRow.covers_epoch)).where(
        VersionRow.model_id == model_id, VersionRow.since_version == since_version
    )
    return session.scalar(query) or 0


def count_records(session: Session, request_ids: Collection[str]) -> int:
    """Return how many records the requests name, each counted once."""
    named = ForgottenRecordRow
    mine = is_one_of(named.request_id, request_ids)
    return session.scalar(select(func.count(named.record_seq.distinct())).where(mine)) or 0


def add(session: Session, key: LineageKey, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert requests of a lineage, each with the totals up to it."""
    if not rows:
        return
    model_id, since_version = key
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    types = AccountedRequestRow.__table__.columns
    arrays = [literal(values, ARRAY(types[name].type)) for name, values in columns.items()]
    new = func.unnest(*arrays).table_valued(*columns, name="new").render_derived()
    session.execute(
        insert(AccountedRequestRow).from_select(
            ["model_id", "since_version", *columns],
            select(
                literal(model_id).label("model_id"),
                literal(since_version).label("since_version"),
                *(new.c[name] for name in columns),
            ),
        )
    )
