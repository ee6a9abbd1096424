"""Operations on datasets: define, push, erase."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from psycopg.errors import DeadlockDetected
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.domain.errors import ConflictError, GoneError, InvalidInputError
from app.domain.ids import new_id, normal_id
from app.domain.schema import TableSchema
from app.domain.tasks import catalogue
from app.domain.tasks.spec import TaskSpec
from app.evidence import log
from app.registry.datasets import digests, features, repository
from app.registry.datasets.columns.cells import notations_of
from app.registry.datasets.columns.encoding import without_target
from app.registry.datasets.columns.parquet import to_parquet
from app.registry.datasets.columns.problems import Problems
from app.registry.datasets.comparison import KeyedUpload, compare
from app.registry.datasets.imports.repository import active_of
from app.registry.datasets.reading import Readers
from app.registry.datasets.shards import pack, without_rows
from app.registry.datasets.tables import DatasetRow, ShardRow
from app.registry.datasets.uploads import Upload
from app.registry.tables import ModelRow
from app.runtime.database import Database
from app.runtime.database.endings import require_live
from app.runtime.failpoints import reach
from app.storage.blobs import Blobs, adopt, doom

_ATTEMPTS = 5
_SAMPLED = 100
"""How many of a push's records tell whether it looks new."""
_SHARD_BYTES: Final = 16 << 20
"""What is rewritten at most when a record is erased, unless one record has more."""

Forget = Callable[[Session, Sequence[str]], str]
"""Has records with these ids forgotten, whose dataset it locks; returns the forget request."""


@dataclass(frozen=True)
class PushResult:
    """What became of an upload's rows, which count from 0.

    Attributes:
        added: How many were new.
        already_present: How many the dataset holds as they are.
        changed_rows: Those that it holds with another subject or other values; it keeps what it
            has.
        replaced_rows: Those that it held otherwise, and holds as they are now, with ``replace``.
        forget_request: The request that had the replaced records forgotten, if any were.
        without_target: How many rows have no target, so that a model does not learn from them, by
            the model's name; models for which all have one are not listed.
    """

    added: int
    already_present: int
    changed_rows: Sequence[int] = ()
    replaced_rows: Sequence[int] = ()
    forget_request: str | None = None
    without_target: Mapping[str, int] = field(default_factory=dict)


Also = Callable[[PushResult, Session], None]
"""Is told what became of an upload, in the transaction that adds it."""


def _nothing(_result: PushResult, _session: Session) -> None:
    pass


def schema_of(dataset: DatasetRow) -> TableSchema:
    """Return the schema that a dataset's row describes."""
    return TableSchema.from_json(dataset.schema)


def define_dataset(
    session: Session,
    *,
    name: str,
    schema: TableSchema,
    public: bool = False,
) -> DatasetRow:
    """Create an empty dataset; repeating the same definition returns the existing one.

    A dataset never becomes public, and a public one never ceases to be.
    """
    existing = repository.find_dataset(session, name)
    if existing is not None:
        require_live("dataset", existing)
        if schema_of(existing) != schema:
            raise ConflictError(f"dataset {name!r} exists with another schema")
        if existing.public != public:
            kind = "public" if existing.public else "not public"
            raise ConflictError(
                f"dataset {name!r} exists and is {kind}; that never changes: define another"
            )
        return existing
    row = DatasetRow(
        id=new_id("ds"),
        name=name,
        schema=schema.to_json(),
        public=public,
    )
    session.add(row)
    session.flush()
    log.append(session, "dataset.defined", dataset=row.id)
    return row


def alter_dataset(session: Session, name: str, columns: Mapping[str, str]) -> DatasetRow:
    """Add columns to a dataset and widen others (``TableSchema.altered``).

    Stored records keep their bytes, and models their tasks, which read them as before. Nothing
    happens if the dataset is so already.
    """
    dataset = repository.lock_dataset_named(session, name)
    require_live("dataset", dataset)
    before = schema_of(dataset)
    after = before.altered(columns)
    if after == before:
        return dataset
    if going := active_of(session, dataset.id):  # its files' further columns would be lost
        raise ConflictError(f"import {going[0].id} reads the columns of before: wait for its end")
    dataset.schema = after.to_json()
    kinds = dict(before.columns)
    changed = {name: str(kind) for name, kind in after.columns if kinds.get(name) != kind}
    log.append(session, "dataset.altered", dataset=dataset.id, columns=changed)
    session.flush()
    return dataset


def warnings(session: Session, name: str) -> list[str]:
    """Name the datasets whose subjects' ids may be the same people's, written otherwise."""
    mine = repository.dataset_named(session, name).subject_notations
    return [
        f"subjects' ids: {name!r} has {' and '.join(mine)}, {other.name!r} has "
        f"{' and '.join(other.subject_notations)}: 007 and 7 are two people"
        for other in repository.datasets(session)
        if mine != other.subject_notations and mine and other.subject_notations
    ]


def give_up_records(session: Session, dataset: DatasetRow) -> None:
    """Give up all records of a dataset, which is locked; no model may learn from them any more.

    They count as forgotten and erased. The next sweep after the commit shreds what held them.
    """
    dataset.forget_epoch += 1
    epoch = dataset.forget_epoch
    session.flush()
    erased, marked = repository.erase_all(session, dataset.id, epoch=epoch)
    dataset.remembered -= len(marked)
    if marked:
        log.append(
            session,
            "records.given_up",
            dataset=dataset.id,
            records=len(marked),
            rows=digests.marked(dataset.id, epoch, marked),
        )
    for shard in sorted(repository.shards(session, dataset.id), key=lambda shard: shard.id):
        session.refresh(shard, with_for_update=True)
        features.give_up(session, shard_id=shard.id)
        doom(session, shard.blob_id)
        shard.rows = 0
    log.append(session, "records.erased", dataset=dataset.id, records=erased)
    session.flush()


@dataclass
class Records:
    """Pushes and erases records; ``learned_through`` tells up to which one a model has read."""

    database: Database
    blobs: Blobs
    pseudonyms: Pseudonyms
    readers: Readers
    learned_through: Callable[[Session, str], int]

    def push(
        self, name: str, content: bytes, *, forget: Forget | None = None, also: Also = _nothing
    ) -> PushResult:
        """Check a Parquet upload and add its new records, atomically."""
        with self.database.transaction() as session:
            dataset = repository.dataset_named(session, name)
            dataset_id, schema = definition_of(session, dataset)
        pushed = self.keyed(dataset_id, self.readers.read(content, schema))
        few = pushed.record_keys[:: 1 + len(pushed.record_keys) // _SAMPLED]
        with self.database.transaction() as session:
            held = repository.held_records(session, dataset_id, [key.tobytes() for key in few])
        return self.store(dataset_id, pushed, looks_new=not held, forget=forget, also=also)

    def keyed(self, dataset_id: str, upload: Upload) -> KeyedUpload:
        """Return an upload with the pseudonyms of its ids, and what models do not learn of it.

        Raises:
            InvalidRecordsError: a model cannot read a row's target, which would stop its runs.
        """
        with self.database.transaction() as session:
            tasks = _tasks(session, dataset_id)
        problems = Problems()
        lacking = {
            name: without_target(upload.content, task, problems) for name, task in tasks.items()
        }
        problems.raise_any()
        return KeyedUpload(
            upload,
            record_keys=self.pseudonyms.records(dataset_id, upload.record_ids),
            subject_keys=self.pseudonyms.subjects(dataset_id, upload.subject_ids),
            without_target={name: count for name, count in lacking.items() if count},
        )

    def store(
        self,
        dataset_id: str,
        pushed: KeyedUpload,
        *,
        part_of: str | None = None,
        looks_new: bool = False,
        forget: Forget | None = None,
        also: Also = _nothing,
    ) -> PushResult:
        """Add the new ones of these records, atomically.

        Of rows with one id, the first counts as pushed before the others.

        Args:
            dataset_id: the dataset.
            pushed: the records, not empty.
            part_of: the import that they belong to.
            looks_new: whether to try first whether all are new, which is faster if they are.
            forget: lets changed records take the place of those stored. Without it, these stay.
            also: called in the transaction that adds them, or in another one if none is new. Its
                exceptions undo all.
        """
        if looks_new:
            result = PushResult(len(pushed.record_keys), 0, without_target=pushed.without_target)
            added = self._add(dataset_id, pushed, result, part_of, also)
            if added is not None:
                return added
        for _ in range(_ATTEMPTS):
            try:
                with self.database.transaction() as session:
                    found = compare(session, self.blobs, dataset_id, pushed)
            except GoneError:
                continue
            replaced = () if forget is None else found.changed
            result = PushResult(
                added=len(found.new),
                already_present=len(found.equal),
                changed_rows=found.changed if forget is None else (),
                replaced_rows=replaced,
                without_target=pushed.without_target,
            )
            new = sorted((*found.new, *replaced))
            if not new:
                with self.database.transaction() as session:
                    also(result, session)
                return result
            ids = pushed.upload.record_ids.take(pa.array(replaced, pa.int64())).to_pylist()
            added = self._add(dataset_id, pushed.rows(new), result, part_of, also, forget, ids)
            if added is not None:
                return added
        raise ConflictError("concurrent pushes and trainings kept interfering: push again")

    def exchange(
        self,
        name: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        record_ids: Sequence[str],
        subject_ids: Sequence[str],
        forget: Forget,
    ) -> str:
        """Add rows about these records or people in the transaction that has others forgotten.

        Return the forget request.

        Raises:
            InvalidRecordsError: a row does not fit the dataset.
            InvalidInputError: a row is about none of these.
            ConflictError: a row has the id of a record that stays.
        """
        dataset_id, pushed = self.replacing(
            name, rows, record_ids=record_ids, subject_ids=subject_ids
        )
        ids = pushed.upload.record_ids.to_pylist()
        result = PushResult(added=len(ids), already_present=0)
        for _ in range(_ATTEMPTS):
            added = self._add(dataset_id, pushed, result, None, _nothing, forget, ids)
            if added is not None and added.forget_request is not None:
                return added.forget_request
        raise ConflictError("concurrent pushes and trainings kept interfering: ask again")

    def replacing(
        self,
        name: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        record_ids: Sequence[str],
        subject_ids: Sequence[str],
    ) -> tuple[str, KeyedUpload]:
        """Return the dataset and the rows that ``exchange`` would add; raises what it raises."""
        with self.database.transaction() as session:
            dataset_id, schema = definition_of(session, repository.dataset_named(session, name))
        pushed = self.keyed(dataset_id, self.readers.read(_parquet(rows), schema))
        named, people = set(map(normal_id, record_ids)), set(map(normal_id, subject_ids))
        ids, subjects = (
            column.to_pylist() for column in (pushed.upload.record_ids, pushed.upload.subject_ids)
        )
        if any(
            record not in named and subject not in people
            for record, subject in zip(ids, subjects, strict=True)
        ):
            raise InvalidInputError("a replacement is about no record or person that is named")
        keys = {key.tobytes(): each for key, each in zip(pushed.record_keys, ids, strict=True)}
        known = {self.pseudonyms.subject(dataset_id, each) for each in people}
        with self.database.transaction() as session:
            held = repository.held_records(session, dataset_id, list(keys))
        if any(
            keys[key] not in named and row.subject_key not in known for key, row in held.items()
        ):
            raise ConflictError("a replacement has the id of a record that stays")
        return dataset_id, pushed

    def _add(
        self,
        dataset_id: str,
        records: KeyedUpload,
        result: PushResult,
        part_of: str | None,
        also: Also,
        forget: Forget | None = None,
        replaced: Sequence[str] = (),
    ) -> PushResult | None:
        """Add records in one transaction that locks the dataset at its very end.

        They become visible with the commit. Where they take the place of those with ``replaced``
        ids, ``forget`` locks it at the beginning.

        Returns:
            What became of them. None if it must be retried: another push has added one of the
            records, or took later numbers that a training has already read, so that these records
            would count as read, too; or the two waited for each other.
        """
        origin = {} if part_of is None else {"import": part_of}
        try:
            with self.database.transaction() as session:
                if forget is not None and replaced:
                    result = replace(result, forget_request=forget(session, replaced))
                first = self._write(session, dataset_id, records)
                dataset = repository.lock_dataset(session, dataset_id)
                require_live("dataset", dataset)
                notations = notations_of(records.upload.subject_ids)
                dataset.subject_notations = sorted({*dataset.subject_notations, *notations})
                self._require_ahead(session, dataset_id, first)
                also(result, session)
                count = len(records.record_keys)
                dataset.pushed += count
                dataset.remembered += count
                log.append(session, "records.pushed", dataset=dataset_id, records=count, **origin)
                reach("before_records_commit")
        except (_OvertakenError, IntegrityError):
            return None
        except OperationalError as error:
            if not isinstance(error.orig, DeadlockDetected):
                raise
            return None
        return result

    def _require_ahead(self, session: Session, dataset_id: str, first: int) -> None:
        """Check that no model counts the records from this number on as read."""
        if self.learned_through(session, dataset_id) >= first:
            raise _OvertakenError

    def _write(self, session: Session, dataset_id: str, records: KeyedUpload) -> int:
        """Write the records in shards; return the first one's sequence number."""
        seqs = repository.new_seqs(session, len(records.record_keys))
        shard_ids = list[str]()
        with ExitStack() as writing:
            blobs = []
            for some in _cuts(records.upload.content):
                blob = self.blobs.reserve(session, "shard", dataset_id=dataset_id)
                rows = len(some)
                shard = ShardRow(id=new_id("shard"), dataset_id=dataset_id, blob_id=blob, rows=rows)
                session.add(shard)
                session.flush()
                own = seqs[len(shard_ids) : len(shard_ids) + rows]
                writing.enter_context(self.blobs.filling(session, blob, partial(pack, own, some)))
                blobs.append(blob)
                shard_ids += [shard.id] * rows
            repository.add_records(
                session,
                dataset_id=dataset_id,
                shard_ids=shard_ids,
                seqs=seqs,
                record_keys=records.record_keys,
                subject_keys=records.subject_keys,
                without_subject=records.without_subject,
            )
        for blob in blobs:
            adopt(session, blob)
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
        for shard_id, erased in sorted(by_shard.items()):  # all lock shards in one order
            shard = session.get_one(ShardRow, shard_id, with_for_update=True)
            left = without_rows(self.blobs.read(shard.blob_id), erased)
            rewritten = self.blobs.put(session, "shard", left, dataset_id=shard.dataset_id)
            doom(session, shard.blob_id)
            adopt(session, rewritten.id)
            shard.blob_id = rewritten.id
            shard.rows -= len(erased)
            features.erase(session, self.blobs, shard, erased)
            repository.mark_erased(session, erased)
        return sum(len(erased) for erased in by_shard.values())


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows that came as JSON as a file, in which a column that a row lacks is empty."""
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        return to_parquet(pa.table({name: [row.get(name) for row in rows] for name in names}))
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):  # they quote values
        raise InvalidInputError("a column of the replacement has values of several kinds") from None


def _cuts(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows, in order, in parts that make no shard larger than it may be."""
    if rows.nbytes <= _SHARD_BYTES or len(rows) == 1:
        yield rows
        return
    half = len(rows) // 2
    yield from _cuts(rows.slice(0, half))
    yield from _cuts(rows.slice(half))


class _OvertakenError(Exception):
    """A training has read later numbers than this push's own."""


def definition_of(session: Session, dataset: DatasetRow) -> tuple[str, TableSchema]:
    """Return a dataset's id and what new rows must have; ``GoneError`` if it was archived.

    A row without a value that a model needs would stop that model's next training.
    """
    require_live("dataset", dataset)
    required = {each for task in _tasks(session, dataset.id).values() for each in task.required}
    return dataset.id, schema_of(dataset).requiring(required)


def _tasks(session: Session, dataset_id: str) -> dict[str, TaskSpec]:
    """Return what the models of a dataset learn, by their names."""
    live = ModelRow.archived_at.is_(None) & ModelRow.deleted_at.is_(None)
    query = select(ModelRow.name, ModelRow.task).where(ModelRow.dataset_id == dataset_id, live)
    return {name: catalogue.from_json(task) for name, task in session.execute(query)}
