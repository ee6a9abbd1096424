"""All SQL about datasets, shards and records."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import psycopg
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Select,
    any_,
    func,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.registry.datasets.tables import DatasetRow, RecordRow, ShardRow
from app.runtime.database.queries import is_one_of, known
from app.storage.tables import BlobRow

_PARAMETERS_AT_ONCE = 10_000
# In one text: a row for each would take longer than drawing them.
_DRAWN = text(
    "SELECT string_agg(seq::text, ',') FROM (SELECT nextval(CAST(:sequence AS regclass)) AS seq"
    " FROM generate_series(1, CAST(:count AS integer))) AS drawn"
)
T = TypeVar("T")


class Stock(NamedTuple):
    """What a dataset's shards are, without reading one: how many rows, and the largest of them."""

    rows: int
    most_rows: int
    most_bytes: int


def stock_of(session: Session, dataset_id: str) -> Stock:
    """Return the sizes of a dataset's shards; their bytes are as they are stored."""
    query = (
        select(func.sum(ShardRow.rows), func.max(ShardRow.rows), func.max(BlobRow.size_bytes))
        .join(BlobRow, BlobRow.id == ShardRow.blob_id)
        .where(ShardRow.dataset_id == dataset_id)
    )
    return Stock(*(int(found or 0) for found in session.execute(query).one()))


def dataset_named(session: Session, name: str) -> DatasetRow:
    """Return a dataset, or raise ``NotFoundError``."""
    return known(find_dataset(session, name), "dataset", name)


def lock_dataset(session: Session, dataset_id: str) -> DatasetRow:
    """Lock a dataset until the transaction ends; return its current row.

    Others may still insert rows that refer to it (``FOR NO KEY UPDATE``): a push does so while it
    inserts its records, and takes the lock at its end.
    """
    return session.get_one(
        DatasetRow, dataset_id, with_for_update={"key_share": True}, populate_existing=True
    )


def lock_dataset_named(session: Session, name: str) -> DatasetRow:
    """Do as ``lock_dataset`` does, by name; or raise ``NotFoundError``."""
    return lock_dataset_at(session, name)[0]


def lock_dataset_at(session: Session, name: str) -> tuple[DatasetRow, datetime]:
    """Do as ``lock_dataset_named`` does; return the time by the database's clock, too."""
    query = _named(name).add_columns(func.clock_timestamp()).with_for_update(key_share=True)
    found = session.execute(query, execution_options={"populate_existing": True}).one_or_none()
    row, moment = known(found, "dataset", name)
    return row, moment.astimezone(UTC)


def find_dataset(session: Session, name: str) -> DatasetRow | None:
    """Return a dataset or None."""
    return session.scalar(_named(name))


def datasets(
    session: Session, *, after: str | None = None, limit: int | None = None
) -> Sequence[DatasetRow]:
    """Return the datasets by name, or a page of them, starting after the name ``after``."""
    query = select(DatasetRow).where(DatasetRow.deleted_at.is_(None))
    if after is not None:
        query = query.where(DatasetRow.name > after)
    return session.scalars(query.order_by(DatasetRow.name).limit(limit)).all()


def shards(session: Session, dataset_id: str) -> Sequence[ShardRow]:
    """Return a dataset's shards in upload order."""
    return session.scalars(
        select(ShardRow)
        .where(ShardRow.dataset_id == dataset_id)
        .order_by(ShardRow.created_at, ShardRow.id)
    ).all()


def shards_of(session: Session, dataset_id: str, seqs: npt.NDArray[np.int64]) -> list[str]:
    """Return the ids of those of a dataset's shards that hold one of these records, sorted."""
    wanted = func.string_to_array(",".join(map(str, seqs.tolist())), ",")
    columns = RecordRow.shard_id, RecordRow.dataset_id
    query = select(*columns).where(RecordRow.seq == any_(wanted.cast(ARRAY(BigInteger))))
    return sorted(
        shard_id
        for shard_id, owner in session.execute(query.distinct())
        if shard_id is not None and owner == dataset_id
    )


class KeyedRecord(NamedTuple):
    """A record, whose it is, when it was forgotten, and where it is stored until it is erased."""

    seq: int
    record_key: bytes | None
    subject_key: bytes | None
    forgotten_epoch: int | None
    shard_id: str | None = None
    sides: dict[str, Any] | None = None


def _read(*wanted: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    return select(*(getattr(RecordRow, name) for name in KeyedRecord._fields)).where(*wanted)


def held_records(
    session: Session, dataset_id: str, keys: Collection[bytes]
) -> dict[bytes, KeyedRecord]:
    """Return, by their keys, those records that the dataset holds and that are not forgotten."""
    found = _with_keys(
        session, dataset_id, RecordRow.record_key, keys, RecordRow.forgotten_epoch.is_(None)
    )
    return {record.record_key: record for record in found if record.record_key is not None}


def keyed_records(
    session: Session,
    dataset_id: str,
    *,
    record_keys: Collection[bytes] = (),
    subject_keys: Collection[bytes] = (),
) -> list[KeyedRecord]:
    """Return all records with one of the record keys, then those of one of the subjects."""
    return [
        *_with_keys(session, dataset_id, RecordRow.record_key, record_keys),
        *_with_keys(session, dataset_id, RecordRow.subject_key, subject_keys),
    ]


def _with_keys(
    session: Session,
    dataset_id: str,
    column: InstrumentedAttribute[Any],
    keys: Collection[bytes],
    *wanted: ColumnElement[bool],
) -> Iterator[KeyedRecord]:
    for batch in batches(list(keys)):
        query = _read(RecordRow.dataset_id == dataset_id, is_one_of(column, batch), *wanted)
        yield from map(KeyedRecord._make, session.execute(query))


def new_seqs(session: Session, count: int) -> npt.NDArray[np.int64]:
    """Return sequence numbers for new records, rising and unique."""
    sequence = session.scalar(select(func.pg_get_serial_sequence("records", "seq")))
    drawn = session.scalar(_DRAWN, {"sequence": sequence, "count": count})
    return np.sort(np.fromstring(drawn or "", dtype=np.int64, sep=","))


def add_records(
    session: Session,
    *,
    dataset_id: str,
    shard_ids: Sequence[str],
    seqs: npt.NDArray[np.int64],
    record_keys: npt.NDArray[np.uint8],
    subject_keys: npt.NDArray[np.uint8],
    without_subject: npt.NDArray[np.bool_],
) -> None:
    """Insert n records under the given sequence numbers; keys are of shape (n, 32).

    They are inserted in key order, so that two transactions that insert the same keys by one call
    each cannot deadlock. All shards' ids are equally long.

    Raises:
        IntegrityError: the dataset holds one of the keys, not forgotten.
    """
    # Sort by the first bytes, which distinguish keyed hashes; NumPy releases the GIL meanwhile.
    shards = np.array(shard_ids, dtype=np.bytes_).view(np.uint8).reshape(len(seqs), -1)
    order = np.argsort(np.ascontiguousarray(record_keys[:, :8]).view(">u8")[:, 0], kind="stable")
    copy_parts(
        session,
        "COPY records (seq, dataset_id, shard_id, record_key, subject_key)"
        " FROM STDIN (FORMAT binary)",
        binary_rows(
            [
                seqs[order].astype(">i8").view(np.uint8).reshape(-1, 8),
                np.frombuffer(dataset_id.encode(), np.uint8),
                shards[order],
                record_keys[order],
                subject_keys[order],
            ],
            last_absent=without_subject[order],
        ),
    )


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


def records_numbered(session: Session, seqs: Collection[int]) -> list[KeyedRecord]:
    """Return the records with these few sequence numbers, in order."""
    query = _read(is_one_of(RecordRow.seq, seqs)).order_by(RecordRow.seq)
    return [KeyedRecord._make(row) for row in session.execute(query)]


def forgotten_since(session: Session, dataset_id: str, epoch: int) -> list[KeyedRecord]:
    """Return every record that was forgotten after an epoch."""
    query = _read(RecordRow.dataset_id == dataset_id, RecordRow.forgotten_epoch > epoch)
    return [KeyedRecord._make(row) for row in session.execute(query)]


def counts(session: Session, dataset_id: str) -> tuple[int, int, int]:
    """Return how many records are active, forgotten but still stored, and erased."""
    rows = select(func.sum(ShardRow.rows)).where(ShardRow.dataset_id == dataset_id)
    stored = func.coalesce(rows.scalar_subquery(), 0)
    query = select(DatasetRow.pushed, DatasetRow.remembered, stored)
    pushed, remembered, kept = session.execute(query.where(DatasetRow.id == dataset_id)).one()
    return remembered, kept - remembered, pushed - kept


def count_later(session: Session, dataset_id: str, seq: int) -> int:
    """Return how many records that are not forgotten came after the one with this number."""
    query = select(func.count()).where(
        RecordRow.dataset_id == dataset_id,
        RecordRow.seq > seq,
        RecordRow.forgotten_epoch.is_(None),
    )
    return session.scalar(query) or 0


def erase_all(session: Session, dataset_id: str, *, epoch: int) -> tuple[int, list[int]]:
    """Mark all records of a dataset as erased, and as forgotten at ``epoch`` unless they were.

    Returns:
        How many were not erased before, and the numbers of those that were not forgotten.
    """
    left = (RecordRow.dataset_id == dataset_id, RecordRow.erased_at.is_(None))
    # In the order in which erasing locks them.
    session.execute(select(RecordRow.seq).where(*left).order_by(RecordRow.seq).with_for_update())
    statement = (
        update(RecordRow)
        .where(*left)
        .values(
            forgotten_epoch=func.coalesce(RecordRow.forgotten_epoch, epoch),
            shard_id=None,
            erased_at=func.now(),
        )
        .returning(RecordRow.seq, RecordRow.forgotten_epoch)
        .execution_options(synchronize_session=False)
    )
    erased = session.execute(statement).all()
    return len(erased), [seq for seq, forgotten in erased if forgotten == epoch]


def mark_forgotten(session: Session, epochs: Mapping[int, int]) -> None:
    """Mark records, by their numbers, as forgotten at these epochs, unless they are."""
    columns = (literal(list(each), ARRAY(BigInteger)) for each in (epochs, epochs.values()))
    marks = func.unnest(*columns).table_valued("seq", "epoch", name="marks").render_derived()
    session.execute(
        update(RecordRow)
        .where(RecordRow.seq == marks.c.seq, RecordRow.forgotten_epoch.is_(None))
        .values(forgotten_epoch=marks.c.epoch)
        .execution_options(synchronize_session=False)
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


def _named(name: str) -> Select[DatasetRow]:
    return select(DatasetRow).where(DatasetRow.name == name, DatasetRow.deleted_at.is_(None))


_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_ROWS_AT_ONCE: Final = 16384


def copy_parts(session: Session, statement: str, parts: Iterable[bytes]) -> None:
    """Carry out a ``COPY … FROM STDIN`` within a session's transaction, which is flushed first.

    Millions of rows go to Postgres at once, without SQLAlchemy. Psycopg's pipelines would save
    round trips too. But they end with a message after which Postgres no longer ends an idle
    transaction, and its locks would stay.

    ``parts`` are rows in the statement's format, cut anywhere.

    Raises:
        DBAPIError: it failed, as SQLAlchemy raises it.
    """
    session.flush()
    connection = session.connection()
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for part in parts:
                copy.write(part)
    except psycopg.Error as error:
        # The server's context of the error is the row that failed.
        reported = type(error)(error.diag.message_primary or str(error))
        raise DBAPIError.instance(
            None,
            None,
            reported,
            psycopg.Error,
            hide_parameters=True,
            connection_invalidated=driver.closed,
            dialect=connection.dialect,
        ) from None


def binary_rows(
    columns: Sequence[npt.NDArray[np.uint8]], *, last_absent: npt.NDArray[np.bool_]
) -> Iterator[bytes]:
    """Yield rows in the format ``binary`` of ``COPY``, which Postgres need not parse.

    Args:
        columns: the fields as Postgres sends them, each of one width: (n, width), or (width,) for
            one that is the same in all rows.
        last_absent: in which rows the last column is NULL, (n,).
    """
    yield _SIGNATURE
    for begin in range(0, len(last_absent), _ROWS_AT_ONCE):
        absent = last_absent[begin : begin + _ROWS_AT_ONCE]
        fields = [np.frombuffer(len(columns).to_bytes(2), np.uint8)]
        for column in columns:
            fields.append(np.frombuffer(column.shape[-1].to_bytes(4), np.uint8))
            fields.append(column if column.ndim == 1 else column[begin : begin + _ROWS_AT_ONCE])
        rows = np.hstack(
            [np.broadcast_to(field, (len(absent), field.shape[-1])) for field in fields]
        )
        width = columns[-1].shape[-1]
        rows[absent, -width - 4 : -width] = 0xFF  # the length of NULL is -1, and nothing follows
        there = np.ones(rows.shape, dtype=np.bool_)
        there[absent, -width:] = False
        yield (rows if not absent.any() else rows[there]).tobytes()
    yield _TRAILER
