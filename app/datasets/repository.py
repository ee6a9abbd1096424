"""All SQL about datasets, shards and records."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from sqlalchemy import (
    ARRAY,
    LargeBinary,
    String,
    any_,
    bindparam,
    func,
    select,
    text,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.database.direct import Direct, directly, prepared
from app.datasets.tables import DatasetRow, RecordRow, ShardRow
from app.domain.errors import NotFoundError

_PARAMETERS_AT_ONCE = 10_000
T = TypeVar("T")


def dataset_named(session: Session, name: str) -> DatasetRow:
    """Return a dataset, or raise ``NotFoundError``."""
    row = session.scalar(select(DatasetRow).where(DatasetRow.name == name))
    if row is None:
        raise NotFoundError("dataset", name)
    return row


def lock_dataset(session: Session, dataset_id: str) -> DatasetRow:
    """Lock a dataset until the transaction ends; return its current row.

    Others may still insert rows that refer to it (``FOR NO KEY UPDATE``): a push does so while it
    inserts its records, and takes the lock at its end.
    """
    return session.get_one(
        DatasetRow, dataset_id, with_for_update={"key_share": True}, populate_existing=True
    )


class LockedDataset(NamedTuple):
    """A dataset that accepts requests."""

    id: str
    name: str
    forget_epoch: int


_LOCKED_DATASET = prepared(
    select(*(getattr(DatasetRow, name) for name in LockedDataset._fields))
    .where(DatasetRow.name == bindparam("name", type_=String))
    .with_for_update(key_share=True)
)


def locked_dataset(session: Session, name: str) -> LockedDataset:
    """Like ``lock_dataset``, but by name and without an ORM object; or ``NotFoundError``."""
    with directly(session) as direct:
        found = direct.read(_LOCKED_DATASET, {"name": name}, LockedDataset)
    for row in found:
        return row
    raise NotFoundError("dataset", name)


def find_dataset(session: Session, name: str) -> DatasetRow | None:
    """Return a dataset or None."""
    return session.scalar(select(DatasetRow).where(DatasetRow.name == name))


def datasets(
    session: Session, *, after: str | None = None, limit: int | None = None
) -> Sequence[DatasetRow]:
    """Return the datasets by name, or a page of them, starting after the name ``after``."""
    query = select(DatasetRow)
    if after is not None:
        query = query.where(DatasetRow.name > after)
    return session.scalars(query.order_by(DatasetRow.name).limit(limit)).all()


def shard_of_upload(session: Session, dataset_id: str, upload_digest: bytes) -> ShardRow | None:
    """Return the shard of an identical upload, if its rows are still complete."""
    return session.scalar(
        select(ShardRow).where(
            ShardRow.dataset_id == dataset_id, ShardRow.upload_digest == upload_digest
        )
    )


def shards(session: Session, dataset_id: str) -> Sequence[ShardRow]:
    """Return a dataset's shards in upload order."""
    return session.scalars(
        select(ShardRow)
        .where(ShardRow.dataset_id == dataset_id)
        .order_by(ShardRow.created_at, ShardRow.id)
    ).all()


_KNOWN = prepared(
    select(RecordRow.record_key).where(
        RecordRow.dataset_id == bindparam("dataset", type_=String),
        RecordRow.record_key == any_(bindparam("keys", type_=ARRAY(LargeBinary))),
    )
)


def known_keys(session: Session, dataset_id: str, keys: Collection[bytes]) -> set[bytes]:
    """Return those of the record keys that the dataset holds or has held."""
    with directly(session) as direct:
        return {
            key
            for batch in batches(list(keys))
            for key in direct.read(_KNOWN, {"dataset": dataset_id, "keys": batch}, bytes)
        }


_NEW_SEQS = prepared(
    text(
        "SELECT nextval(pg_get_serial_sequence('records', 'seq'))"
        " FROM generate_series(1, CAST(:count AS bigint))"
    )
)
_COPY_RECORDS = b"COPY records (seq, dataset_id, shard_id, record_key, subject_key) FROM STDIN"


def new_seqs(session: Session, count: int) -> npt.NDArray[np.int64]:
    """Return new sequence numbers, rising and unique."""
    with directly(session) as direct:
        drawn = [
            direct.read(_NEW_SEQS, {"count": len(batch)}, int) for batch in batches(range(count))
        ]
    return np.concatenate([np.array(seqs, dtype=np.int64) for seqs in drawn])


def add_records(
    session: Session,
    *,
    dataset_id: str,
    shard_id: str,
    seqs: npt.NDArray[np.int64],
    record_keys: Sequence[bytes],
    subject_keys: Sequence[bytes | None],
) -> None:
    """Insert records under the given sequence numbers.

    They are inserted in key order, so that two transactions with the same keys cannot deadlock.

    Raises:
        IntegrityError: the dataset holds one of the keys, or has held it.
    """
    # Sort by the first bytes, which distinguish keyed hashes; NumPy releases the GIL meanwhile.
    firsts = np.frombuffer(b"".join(key[:8] for key in record_keys), dtype=">u8")
    rows = np.argsort(firsts, kind="stable").tolist()
    with directly(session) as direct:
        for batch in batches(rows):
            direct.copy(
                _COPY_RECORDS,
                (
                    (int(seqs[i]), dataset_id, shard_id, record_keys[i], subject_keys[i])
                    for i in batch
                ),
            )


def records_by_key(
    session: Session,
    dataset_id: str,
    *,
    record_keys: Collection[bytes] = (),
    subject_keys: Collection[bytes] = (),
) -> list[RecordRow]:
    """Return the records with one of the record keys or of one of the subjects."""
    rows: list[RecordRow] = []
    for column, keys in (
        (RecordRow.record_key, record_keys),
        (RecordRow.subject_key, subject_keys),
    ):
        for batch in batches(list(keys)):
            query = select(RecordRow).where(RecordRow.dataset_id == dataset_id, column.in_(batch))
            rows.extend(session.scalars(query.order_by(RecordRow.seq)))
    return rows


class KeyedRecord(NamedTuple):
    """A record's identity, and when it was forgotten."""

    seq: int
    record_key: bytes
    subject_key: bytes | None
    forgotten_epoch: int | None
    absences: list[int] | None


def _keyed_by(column: InstrumentedAttribute[Any]) -> bytes:
    return prepared(
        select(*(getattr(RecordRow, name) for name in KeyedRecord._fields)).where(
            RecordRow.dataset_id == bindparam("dataset", type_=String),
            column == any_(bindparam("keys", type_=ARRAY(LargeBinary))),
        )
    )


_KEYED_BY_RECORD = _keyed_by(RecordRow.record_key)
_KEYED_BY_SUBJECT = _keyed_by(RecordRow.subject_key)


def keyed_records(
    direct: Direct,
    dataset_id: str,
    *,
    record_keys: Collection[bytes] = (),
    subject_keys: Collection[bytes] = (),
) -> list[KeyedRecord]:
    """Like ``records_by_key``, but reads current rows without ORM objects."""
    return [
        record
        for statement, keys in (
            (_KEYED_BY_RECORD, record_keys),
            (_KEYED_BY_SUBJECT, subject_keys),
        )
        for batch in batches(list(keys))
        for record in direct.read(statement, {"dataset": dataset_id, "keys": batch}, KeyedRecord)
    ]


def lock_records(session: Session, seqs: Collection[int]) -> list[RecordRow]:
    """Lock the records with these sequence numbers, in order, and return their current rows."""
    rows: list[RecordRow] = []
    for batch in batches(sorted(seqs)):
        query = select(RecordRow).where(RecordRow.seq.in_(batch)).order_by(RecordRow.seq)
        # Allow references: a request may name a record that is being erased.
        fresh = query.with_for_update(key_share=True).execution_options(populate_existing=True)
        rows.extend(session.scalars(fresh))
    return rows


def highest_seq(session: Session, dataset_id: str) -> int:
    """Return the newest record's sequence number, 0 without records."""
    query = select(func.max(RecordRow.seq)).where(RecordRow.dataset_id == dataset_id)
    return session.scalar(query) or 0


def read_through(session: Session, dataset_id: str, read: Collection[str]) -> int:
    """Return the sequence number up to which the shards ``read`` hold every record.

    A shard may have been added since they were read, by a push that took its numbers earlier or
    later than theirs.
    """
    unread = [
        shard.id for shard in shards(session, dataset_id) if shard.rows and shard.id not in read
    ]
    first = session.scalar(select(func.min(RecordRow.seq)).where(RecordRow.shard_id.in_(unread)))
    return highest_seq(session, dataset_id) if first is None else first - 1


class DatedRecord(NamedTuple):
    """A record, and when it was forgotten."""

    seq: int
    record_key: bytes
    forgotten_epoch: int | None
    absences: list[int] | None


def records_through(session: Session, dataset_id: str, seq: int) -> list[DatedRecord]:
    """Return every record up to one, forgotten and erased ones included."""
    columns = [getattr(RecordRow, name) for name in DatedRecord._fields]
    query = select(*columns).where(RecordRow.dataset_id == dataset_id, RecordRow.seq <= seq)
    return [DatedRecord(*row) for row in session.execute(query)]


def counts(session: Session, dataset_id: str) -> tuple[int, int, int]:
    """Return how many records are active, forgotten but still stored, and erased."""
    query = select(
        func.count().filter(RecordRow.forgotten_epoch.is_(None)),
        func.count().filter(RecordRow.forgotten_epoch.is_not(None), RecordRow.erased_at.is_(None)),
        func.count().filter(RecordRow.erased_at.is_not(None)),
    ).where(RecordRow.dataset_id == dataset_id)
    remembered_count, pending, erased = session.execute(query).one()
    return remembered_count, pending, erased


def mark_forgotten(session: Session, seqs: Collection[int], *, epoch: int) -> None:
    """Mark active records as forgotten at ``epoch``."""
    for batch in batches(list(seqs)):
        session.execute(
            update(RecordRow)
            .where(RecordRow.seq.in_(batch), RecordRow.forgotten_epoch.is_(None))
            .values(forgotten_epoch=epoch)
            .execution_options(synchronize_session="fetch")
        )


def mark_erased(session: Session, seqs: Collection[int]) -> None:
    """Mark records as erased from the stored shards."""
    for batch in batches(list(seqs)):
        session.execute(
            update(RecordRow)
            .where(RecordRow.seq.in_(batch))
            .values(shard_id=None, erased_at=func.now())
            .execution_options(synchronize_session="fetch")
        )


def batches(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield ``values`` in chunks short enough for one statement."""
    for start in range(0, len(values), _PARAMETERS_AT_ONCE):
        yield values[start : start + _PARAMETERS_AT_ONCE]
