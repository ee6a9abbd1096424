"""Searches every store for remains of one record or one person.

Two things remain by design: keyed hashes, which recognise a forgotten id or a request's name if it
comes back, and salted commitments, with which the person can prove what was certified. A raw id
anywhere, or a row of a record that a completed request names, is a fault.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import Executable, or_, select
from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.domain.errors import (
    CorruptObjectError,
    GoneError,
    KeyServiceError,
    KeyStoreError,
    ObjectStoreError,
)
from app.domain.states import BlobState, RequestState
from app.ledger.everywhere import external_keys
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow
from app.operations.findings import Finding, Verdict
from app.operations.raw_search import (
    LEAST_BYTES,
    RawId,
    search_files,
    search_postgres,
    search_redis,
)
from app.registry.datasets import repository as datasets
from app.registry.datasets.shards import seqs_of_shard, unpacked
from app.registry.datasets.tables import FeatureShardRow, RecordRow, ShardRow
from app.registry.statistics_file import StatisticsFile
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database import Database
from app.runtime.database.queries import is_one_of
from app.storage.blobs import Blobs
from app.storage.tables import BlobRow

SeqsOf = Callable[[bytes], NDArray[np.int64]]
_PACKED = ("shard", "features")
_UNREADABLE = (CorruptObjectError, KeyServiceError, KeyStoreError, ObjectStoreError)


@dataclass(frozen=True)
class Stores:
    """All stores to search; ``logs`` is the directory of the embedded servers' log files."""

    database: Database
    blobs: Blobs
    redis: Redis
    pseudonyms: Pseudonyms
    logs: Path


def check(
    stores: Stores, *, dataset: str, owners_id: str, report: Callable[[Finding], None]
) -> bool:
    """Report all remains of a record's or subject's id; return whether none is a fault.

    Raises:
        NotFoundError: the dataset does not exist.
    """
    faults = 0
    for finding in _Check(stores, dataset, owners_id).findings():
        faults += finding.verdict is Verdict.FAULT
        report(finding)
    return faults == 0


class _Check:
    def __init__(self, stores: Stores, dataset: str, owners_id: str) -> None:
        self._stores = stores
        self._owners_id = owners_id
        self._sought = RawId(owners_id)
        with stores.database.transaction() as session:
            self._dataset_id = datasets.dataset_named(session, dataset).id
            self._records = self._records_of(session, owners_id)
        self._erased = {row.seq for row in self._records if row.erased_at is not None}

    def findings(self) -> Iterator[Finding]:
        yield from self._ledger()
        yield from self._rows()
        if not self._sought.is_searchable:
            meaning = f"an id of fewer than {LEAST_BYTES} bytes occurs by chance"
            yield Finding(Verdict.UNSEARCHED, "bytes of all stores", meaning)
            return
        yield from self._objects()
        for where in search_postgres(self._stores.database.engine, self._sought):
            yield _raw(where)
        yield from self._redis()
        yield from self._logs()

    def _records_of(self, session: Session, owners_id: str) -> list[RecordRow]:
        pseudonyms, dataset_id = self._stores.pseudonyms, self._dataset_id
        is_named = or_(
            RecordRow.record_key == pseudonyms.record(dataset_id, owners_id),
            RecordRow.subject_key == pseudonyms.subject(dataset_id, owners_id),
        )
        query = select(RecordRow).where(RecordRow.dataset_id == dataset_id, is_named)
        return list(session.scalars(query.order_by(RecordRow.seq)))

    def _ledger(self) -> Iterator[Finding]:
        for record in self._records:
            where = f"record {record.seq}"
            if record.erased_at is not None:
                meaning = (
                    f"keyed hash, kept for the certificates; erased {record.erased_at:%F %T%z}"
                )
                yield Finding(Verdict.BY_DESIGN, where, meaning)
            elif record.forgotten_epoch is None:
                yield Finding(Verdict.PENDING, where, "stored; no request names it")
            for request in self._requests(record.seq):
                yield _of_request(record, request)
        for request_id, what in self._named():
            meaning = f"keyed hash of the id as the request's {what}, kept to refuse a second one"
            yield Finding(Verdict.BY_DESIGN, f"request {request_id}", meaning)

    def _requests(self, seq: int) -> Sequence[ForgetRequestRow]:
        query = (
            select(ForgetRequestRow)
            .join(ForgottenRecordRow, ForgottenRecordRow.request_id == ForgetRequestRow.id)
            .where(ForgottenRecordRow.record_seq == seq)
            .order_by(ForgetRequestRow.received_at)
        )
        with self._stores.database.transaction() as session:
            return session.scalars(query).all()

    def _named(self) -> list[tuple[str, str]]:
        """Return the requests whose caller used the id as a name of the request itself."""
        pseudonyms, name = self._stores.pseudonyms, self._owners_id
        with self._stores.database.transaction() as session:
            external = external_keys(session, pseudonyms, name)
            columns = {
                "external id": (ForgetRequestRow.external_key, external),
                "Idempotency-Key": (
                    ForgetRequestRow.idempotency_key,
                    [pseudonyms.idempotency_key(name)],
                ),
            }
            return [
                (request_id, what)
                for what, (column, keys) in columns.items()
                for request_id in session.scalars(
                    select(ForgetRequestRow.id).where(is_one_of(column, keys))
                )
            ]

    def _rows(self) -> Iterator[Finding]:
        """Search every shard, the features that backbones computed from it, and models' sums."""
        sought = {record.seq for record in self._records}
        for where, blob_id, seqs_of in self._tables() if sought else ():
            try:
                held = sought & set(seqs_of(self._stores.blobs.read(blob_id)).tolist())
            except GoneError:
                continue  # it was rewritten meanwhile
            except _UNREADABLE as error:
                yield Finding(Verdict.UNSEARCHED, where, str(error))
                continue
            for seq in sorted(held):
                if seq in self._erased:
                    yield Finding(Verdict.FAULT, where, f"holds the erased record {seq}")
                else:
                    yield Finding(Verdict.PENDING, where, f"holds record {seq}")

    def _tables(self) -> list[tuple[str, str, SeqsOf]]:
        shards = select(ShardRow.id, ShardRow.blob_id).where(
            ShardRow.dataset_id == self._dataset_id
        )
        features = (
            select(FeatureShardRow.id, FeatureShardRow.blob_id)
            .join(ShardRow, ShardRow.id == FeatureShardRow.shard_id)
            .where(ShardRow.dataset_id == self._dataset_id)
        )
        sums = (
            select(VersionRow.id, VersionRow.statistics_blob_id)
            .join(ModelRow, ModelRow.head_version_id == VersionRow.id)
            .where(
                ModelRow.dataset_id == self._dataset_id, VersionRow.statistics_blob_id.is_not(None)
            )
        )
        tables: list[tuple[str, Executable, SeqsOf]] = [
            ("shard", shards, seqs_of_shard),
            ("cached features", features, seqs_of_shard),
            ("statistics of version", sums, lambda read: StatisticsFile.from_bytes(read).seqs),
        ]
        with self._stores.database.transaction() as session:
            return [
                (f"{what} {name}", blob_id, seqs_of)
                for what, query, seqs_of in tables
                for name, blob_id in session.execute(query).all()
            ]

    def _objects(self) -> Iterator[Finding]:
        """Search the content of every object that can still be decrypted."""
        query = select(BlobRow).where(
            BlobRow.state != BlobState.SHREDDED, BlobRow.size_bytes.is_not(None)
        )
        with self._stores.database.transaction() as session:
            rows = session.scalars(query.order_by(BlobRow.id)).all()
        for row in rows:
            where = f"object {row.id} ({row.kind}, {row.state})"
            try:
                found = self._is_within(row)
            except GoneError:
                continue
            except _UNREADABLE as error:
                yield Finding(Verdict.UNSEARCHED, where, str(error))
                continue
            if found:
                yield _raw(where)

    def _is_within(self, blob: BlobRow) -> bool:
        """Return whether an object holds the id; shards are unpacked for it."""
        if blob.kind in _PACKED:
            return self._sought.is_within(unpacked(self._stores.blobs.read(blob.id)))
        with closing(self._stores.blobs.open_range(blob.id, 0, blob.size_bytes or 0)) as parts:
            return self._sought.is_within(parts)

    def _redis(self) -> Iterator[Finding]:
        try:
            for where in search_redis(self._stores.redis, self._sought):
                yield _raw(where)
        except RedisError as error:
            meaning = f"it does not answer: {type(error).__name__}"
            yield Finding(Verdict.UNSEARCHED, "Redis", meaning)

    def _logs(self) -> Iterator[Finding]:
        for path, is_readable in search_files(self._stores.logs, self._sought):
            where = f"file {path}"
            if is_readable:
                yield _raw(where)
            else:
                yield Finding(Verdict.UNSEARCHED, where, "this account may not read it")


def _of_request(record: RecordRow, request: ForgetRequestRow) -> Finding:
    where = f"record {record.seq} in request {request.id}"
    if record.erased_at is not None:
        return Finding(Verdict.BY_DESIGN, where, "salted commitment, kept for the certificate")
    if request.state == RequestState.COMPLETED or request.completed_at is not None:
        return Finding(Verdict.FAULT, where, "the request is completed, the record is stored")
    meaning = f"the request is {request.state}; the record is erased when all models forgot it"
    return Finding(Verdict.PENDING, where, meaning)


def _raw(where: str) -> Finding:
    return Finding(Verdict.FAULT, where, "holds the id, or a longer one that contains it")
