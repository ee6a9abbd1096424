"""Operations on datasets: define, push, erase."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import log
from app.database import Database
from app.datasets import digests, features, repository
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.reading import Readers
from app.datasets.shards import encode_shard, without_rows
from app.datasets.tables import DatasetRow, ShardRow
from app.datasets.uploads import MAX_REPORTED_PROBLEMS, Upload
from app.domain.errors import ConflictError, InvalidRecordsError, RowProblem
from app.domain.ids import new_id
from app.domain.schema import FeatureSchema
from app.storage.blobs import Blobs

_ATTEMPTS = 5


@dataclass(frozen=True)
class PushResult:
    """How many records a push added; 0 for a repeated upload."""

    added: int
    already_present: int


def schema_of(dataset: DatasetRow) -> FeatureSchema:
    """Return the schema that a dataset's row describes."""
    return FeatureSchema(
        shape=tuple(dataset.feature_shape),
        dtype=dataset.feature_dtype,
        offset=dataset.feature_offset,
        scale=dataset.feature_scale,
        classes=dataset.classes,
    )


def define_dataset(session: Session, *, name: str, schema: FeatureSchema) -> DatasetRow:
    """Create an empty dataset; repeating the same definition returns the existing one.

    Raises:
        ConflictError: the name is taken by a dataset with another schema.
    """
    existing = repository.find_dataset(session, name)
    if existing is not None:
        if schema_of(existing) != schema:
            raise ConflictError(f"dataset {name!r} exists with another schema")
        return existing
    row = DatasetRow(
        id=new_id("ds"),
        name=name,
        feature_shape=list(schema.shape),
        feature_dtype=schema.dtype,
        feature_offset=schema.offset,
        feature_scale=schema.scale,
        classes=schema.classes,
    )
    session.add(row)
    session.flush()
    log.append(session, "dataset.defined", dataset=row.id, definition=digests.of_dataset(row))
    return row


class Records:
    """Pushes and erases records."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        pseudonyms: Pseudonyms,
        *,
        readers: Readers,
        learned_through: Callable[[Session, str], int],
    ) -> None:
        """Set the collaborators.

        Args:
            database: the ledger.
            blobs: stores the shards.
            pseudonyms: derives keys of records and subjects.
            readers: decode uploads.
            learned_through: returns the highest sequence number of a dataset that any model has
                read.
        """
        self._database = database
        self._blobs = blobs
        self._pseudonyms = pseudonyms
        self._readers = readers
        self._learned_through = learned_through

    def push(self, name: str, content: bytes) -> PushResult:
        """Check a Parquet upload and add its records as one shard, atomically.

        Raises:
            NotFoundError: the dataset does not exist.
            InvalidRecordsError: a row is invalid, or its id is taken or was forgotten.
            PayloadTooLargeError: the unpacked file exceeds the limit.
        """
        with self._database.transaction() as session:
            dataset_id, schema = _definition(repository.dataset_named(session, name))
        upload = self._readers.read(content, schema)
        records = _Keyed(
            upload,
            digest=self._pseudonyms.upload(dataset_id, content),
            record_keys=[self._pseudonyms.record(dataset_id, i) for i in upload.record_ids],
            subject_keys=[
                None if subject is None else self._pseudonyms.subject(dataset_id, subject)
                for subject in upload.subject_ids
            ],
        )
        for _ in range(_ATTEMPTS):
            with self._database.transaction() as session:
                repeated = repository.shard_of_upload(session, dataset_id, records.digest)
                if repeated is not None:
                    return PushResult(added=0, already_present=repeated.rows)
                _refuse_known(session, dataset_id, records.record_keys)
            if self._add(dataset_id, records):
                return PushResult(added=len(records.record_keys), already_present=0)
        raise ConflictError("concurrent pushes and trainings kept interfering: push again")

    def _add(self, dataset_id: str, records: "_Keyed") -> bool:
        """Add records in one transaction that locks the dataset at its very end.

        They become visible with the commit. Returns False if it must be retried: another push has
        added one of the records, or took later numbers that a training has already read, so that
        these records would count as read, too.
        """
        try:
            with self._database.transaction() as session:
                first = self._write(session, dataset_id, records)
                repository.lock_dataset(session, dataset_id)
                self._require_ahead(session, dataset_id, first)
                count = len(records.record_keys)
                log.append(session, "records.pushed", dataset=dataset_id, records=count)
        except (_OvertakenError, IntegrityError):
            return False
        return True

    def _require_ahead(self, session: Session, dataset_id: str, first: int) -> None:
        """Check that no model counts the records from this number on as read."""
        if self._learned_through(session, dataset_id) >= first:
            raise _OvertakenError

    def _write(self, session: Session, dataset_id: str, records: "_Keyed") -> int:
        """Write the shard and its records; return the first one's sequence number."""
        count = len(records.record_keys)
        blob = self._blobs.reserve(session, "shard", dataset_id=dataset_id)
        shard = ShardRow(
            id=new_id("shard"),
            dataset_id=dataset_id,
            blob_id=blob,
            rows=count,
            upload_digest=records.digest,
        )
        session.add(shard)
        session.flush()
        seqs = repository.new_seqs(session, count)
        repository.add_records(
            session,
            dataset_id=dataset_id,
            shard_id=shard.id,
            seqs=seqs,
            record_keys=records.record_keys,
            subject_keys=records.subject_keys,
        )
        upload = records.upload
        content = encode_shard(seqs=seqs, labels=upload.labels, features=upload.features)
        self._blobs.fill(blob, content, session=session)
        self._blobs.adopt(session, blob)
        return int(seqs[0])

    def erase(self, session: Session, seqs: Sequence[int]) -> int:
        """Rewrite shards without the given records; return how many were erased.

        Frozen backbones' features are rewritten, too. The next sweep after the caller's commit
        shreds the old blobs.
        """
        by_shard: dict[str, list[int]] = {}
        for record in repository.lock_records(session, seqs):
            if record.shard_id is not None:
                by_shard.setdefault(record.shard_id, []).append(record.seq)
        for shard_id, erased in by_shard.items():
            shard = session.get_one(ShardRow, shard_id, with_for_update=True)
            left = without_rows(self._blobs.read(shard.blob_id), erased)
            rewritten = self._blobs.put(session, "shard", left, dataset_id=shard.dataset_id)
            self._blobs.doom(session, shard.blob_id)
            self._blobs.adopt(session, rewritten.id)
            shard.blob_id = rewritten.id
            shard.rows -= len(erased)
            shard.upload_digest = None
            features.erase(session, self._blobs, shard, erased)
            repository.mark_erased(session, erased)
        return sum(len(erased) for erased in by_shard.values())


@dataclass(frozen=True)
class _Keyed:
    """An upload with the pseudonyms of its ids, by row."""

    upload: Upload
    digest: bytes
    record_keys: list[bytes]
    subject_keys: list[bytes | None]


class _OvertakenError(Exception):
    """A training has read later numbers than this push's own."""


def _definition(dataset: DatasetRow) -> tuple[str, FeatureSchema]:
    return dataset.id, schema_of(dataset)


def _refuse_known(session: Session, dataset_id: str, record_keys: list[bytes]) -> None:
    known = repository.known_keys(session, dataset_id, record_keys)
    faulty = [row for row, key in enumerate(record_keys) if key in known]
    if faulty:
        reason = "is in the dataset already, or was forgotten and must not come back"
        problems = [RowProblem(row, "record_id", reason) for row in faulty[:MAX_REPORTED_PROBLEMS]]
        raise InvalidRecordsError(problems, len(faulty))
