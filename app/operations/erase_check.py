"""Searches every store for remains of one record or one person.

Until the evidence is destroyed, two things remain by design: keyed hashes, which recognise a
forgotten id or a request's name if it comes back, and salted commitments, with which the person can
prove what was certified. A raw id anywhere, or a row of a record that a completed request names, is
a fault.

The search terms stay in this process: in a query they would reach the servers' own logs and memory.
"""

import json
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import Engine, Executable, or_, select, text

from app.access.pseudonyms import Pseudonyms
from app.domain.errors import (
    CorruptObjectError,
    GoneError,
    KeyServiceError,
    KeyStoreError,
    ObjectStoreError,
)
from app.domain.ids import normal_id
from app.domain.states import BlobState, RequestState
from app.ledger.everywhere import external_keys
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow
from app.operations.storage_check import Finding, Verdict
from app.registry.datasets import repository as datasets
from app.registry.datasets.shards import seqs_of_shard, unpacked
from app.registry.datasets.tables import FeatureShardRow, RecordRow, ShardRow
from app.registry.statistics_file import StatisticsFile
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database import Database
from app.runtime.database.queries import is_one_of
from app.storage.blobs import Blobs
from app.storage.tables import BlobRow

LEAST_BYTES = 6
"""Shorter ids occur by chance in any store."""
_ROWS_AT_ONCE = 1000
_BUFFER_BYTES = 4 * 1024 * 1024
_TABLES = text("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")


class RawId:
    """One id in UTF-8, as it is, and as JSON and PostgreSQL's rows quote it.

    Accented letters may be one character or two, as the sender wrote them.
    """

    def __init__(self, owners_id: str) -> None:
        forms = {unicodedata.normalize(form, owners_id) for form in ("NFC", "NFD")}
        forms |= {owners_id, normal_id(owners_id)}
        quoted = {form.replace("\\", "\\\\").replace('"', '""') for form in forms}
        in_json = {json.dumps(form)[1:-1] for form in forms}
        self._words = {word.encode() for word in forms | quoted | in_json}
        self.is_searchable = min(len(form.encode()) for form in forms) >= LEAST_BYTES

    def is_in(self, *parts: bytes) -> bool:
        """Return whether one of the parts contains it."""
        return any(word in part for part in parts for word in self._words)

    def is_within(self, content: Iterable[bytes]) -> bool:
        """Search content that comes in parts, including across their boundaries."""
        before, longest = b"", max(map(len, self._words))
        for part in content:
            window = before + part
            if self.is_in(window):
                return True
            before = window[-longest:]
        return False


def search_postgres(engine: Engine, sought: RawId) -> Iterator[str]:
    """Yield table and start of every row that holds the id."""
    with engine.connect() as connection:
        for table in connection.scalars(_TABLES).all():
            # The names come from the catalogue, quoted by the server.
            query = text(f"SELECT t::text FROM {table} AS t")  # noqa: S608
            streamed = connection.execution_options(yield_per=_ROWS_AT_ONCE)
            for row in streamed.scalars(query):
                if sought.is_in(row.encode()):
                    yield f"table {table}, row {row[1:].partition(',')[0]}"


def search_redis(connection: Redis, sought: RawId) -> Iterator[str]:
    """Yield the kind of every key that holds the id in its name or value."""
    for key in connection.scan_iter():
        parts = (key, *_values(connection, key))
        if sought.is_in(*parts, *map(_inflated, parts)):
            yield f"Redis, a key that begins with {key[:8].decode(errors='replace')!r}"


def search_files(root: Path, sought: RawId) -> Iterator[tuple[Path, bool]]:
    """Yield every file below a directory that holds the id, and whether it could be read."""
    for path in sorted(root.rglob("*")):
        try:
            if path.is_file():
                with path.open("rb") as file:
                    found = sought.is_within(iter(lambda: file.read(_BUFFER_BYTES), b""))
                if found:
                    yield path, True
        except FileNotFoundError:
            continue  # it was removed meanwhile
        except OSError:
            yield path, False


def _values(connection: Redis, key: bytes) -> list[bytes]:
    """Return what a key holds, whatever its type."""
    client: Any = connection
    readers: dict[bytes, Callable[[], list[bytes]]] = {
        b"string": lambda: [client.get(key) or b""],
        b"hash": lambda: [part for pair in client.hgetall(key).items() for part in pair],
        b"list": lambda: list(client.lrange(key, 0, -1)),
        b"set": lambda: list(client.smembers(key)),
        b"zset": lambda: list(client.zrange(key, 0, -1)),
        b"stream": lambda: [
            part for _, fields in client.xrange(key) for pair in fields.items() for part in pair
        ],
    }
    read = readers.get(client.type(key))
    return [client.dump(key) or b""] if read is None else read()


def _inflated(content: bytes) -> bytes:
    """Decompress content compressed with zlib, as the queue's jobs are; else return nothing."""
    with suppress(zlib.error):
        return zlib.decompress(content)
    return b""


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
            pseudonyms, dataset_id = self._stores.pseudonyms, self._dataset_id
            is_named = or_(
                RecordRow.record_key == pseudonyms.record(dataset_id, owners_id),
                RecordRow.subject_key == pseudonyms.subject(dataset_id, owners_id),
            )
            query = select(RecordRow).where(RecordRow.dataset_id == dataset_id, is_named)
            self._records = list(session.scalars(query.order_by(RecordRow.seq)))
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
                if row.kind in _PACKED:
                    found = self._sought.is_within(unpacked(self._stores.blobs.read(row.id)))
                else:
                    parts = self._stores.blobs.open_range(row.id, 0, row.size_bytes or 0)
                    with closing(parts):
                        found = self._sought.is_within(parts)
            except GoneError:
                continue
            except _UNREADABLE as error:
                yield Finding(Verdict.UNSEARCHED, where, str(error))
                continue
            if found:
                yield _raw(where)

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
    if request.forget_epoch is None:
        meaning = f"the request is {request.state}, so it has nothing forgotten"
    return Finding(Verdict.PENDING, where, meaning)


def _raw(where: str) -> Finding:
    return Finding(Verdict.FAULT, where, "holds the id, or a longer one that contains it")
