"""The records of a lineage as arrays, which are made once: they follow from hashes of their keys.

PostgreSQL hashes the keys of all records, and a run keeps what follows (``LineageRecordsRow``). So
later runs only ask it which records were forgotten since.
"""

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import LargeBinary, SmallInteger, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import RecordRow
from app.registry.membership import (
    Membership,
    batch_digest,
    batch_digest_in_sql,
    membership_of,
)
from app.registry.tables import LineageRecordsRow, ModelRow
from app.runtime.database.queries import is_one_of

NEVER: Final = np.iinfo(np.int64).max
"""The epoch of a record that is not forgotten."""
_ROWS_AT_ONCE: Final = 2**20
_MOST_REMEMBERED: Final = 256
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
_KEPT: Final = {
    "facts": np.dtype([("seq", ">i8"), ("member", ">i2"), ("is_held_out", "?")]),
    "ranks": np.dtype(">u4"),
}
BYTES_OF_FACTS: Final = _KEPT["facts"].itemsize
"""Of one record."""
_LAST: Final = b"\xff" * 32
"""Of all digests."""
_DIGESTS: Final = np.dtype([("seq", ">i8"), ("digest", ">u8", 4)])


class TrainingRecord(NamedTuple):
    """A record that a lineage is trained on, and that was forgotten.

    ``member`` is which member of an ensemble learns from it.
    """

    seq: int
    key: bytes | None
    forgotten_epoch: int | None
    member: int = 0


@dataclass(frozen=True, eq=False)
class Facts:
    """What a lineage knows of some records, in the order of their numbers.

    Attributes:
        seqs: int64 [n], their numbers.
        ended: int64 [n], the epochs when they were forgotten; ``NEVER`` while they are not.
        members: int16 [n], which member of an ensemble learns from each.
    """

    seqs: NDArray[np.int64]
    ended: NDArray[np.int64]
    members: NDArray[np.int16]

    @property
    def retained(self) -> NDArray[np.int64]:
        """The numbers of those that are not forgotten."""
        retained: NDArray[np.int64] = self.seqs[self.ended == NEVER]
        return retained


class TrainingSet:
    """The records of one model in one transaction, read once and on demand.

    Records forgotten later than the epoch ``as_of`` count as not forgotten. ``membership`` is of
    a training that is going; by default that of the model's lineage.
    """

    def __init__(
        self,
        session: Session,
        model: ModelRow,
        membership: Membership | None = None,
        *,
        as_of: int | None = None,
    ) -> None:
        membership = membership or membership_of(model)
        if membership is None:
            raise ConflictError("the model has no training set yet")
        self.membership = membership
        self._session = session
        self._model_id, self._dataset_id = model.id, model.dataset_id
        self._as_of = as_of
        self._hashed = set[str]()

    @property
    def records(self) -> Facts:
        """Every record that the model is trained on, including forgotten ones."""
        return self._split[0]

    @property
    def held_out(self) -> Facts:
        """Every record held out for evaluation, including forgotten ones."""
        return self._split[1]

    @property
    def retained(self) -> int:
        """How many records there are to learn from."""
        return len(self.records.retained)

    def read(self, begun_at_epoch: int, /) -> int:
        """Return how many a training that began at an epoch read."""
        return int(np.count_nonzero(self.records.ended > begun_at_epoch))

    def forgotten_after(self, epoch: int) -> list[TrainingRecord]:
        """Return those to learn from that were forgotten after an epoch."""
        records = self.records
        gone = (records.ended > epoch) & (records.ended != NEVER)
        seqs, ended = records.seqs[gone].tolist(), records.ended[gone].tolist()
        found = datasets.records_numbered(self._session, seqs)
        keys = [record.record_key for record in found]
        facts = zip(seqs, keys, ended, records.members[gone].tolist(), strict=True)
        return [TrainingRecord(*each) for each in facts]

    def by_batch(
        self, records: Iterable[TrainingRecord], batch_size: int, *, begun_at_epoch: int
    ) -> Counter[int]:
        """Count records by the fixed batch of the training that read them."""
        seqs, batch_of = self.batches(batch_size, begun_at_epoch=begun_at_epoch)
        places = np.searchsorted(seqs, [record.seq for record in records])
        return Counter(batch_of[places].tolist())

    def batches(
        self, batch_size: int, *, begun_at_epoch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of all records that a training read, ascending, and their batches.

        The partition is drawn by a salted hash of the records' keys. It looks at no content and
        never changes, because rows outlive erasure. The last batch may have fewer records.
        """
        ranked = self._ranked(begun_at_epoch)
        order = np.argsort(ranked)
        return ranked[order], order // batch_size

    def starts(self, batch_size: int, *, begun_at_epoch: int) -> tuple[bytes, ...]:
        """Return where each batch begins: the first digest of each, in order.

        Records whose keys are destroyed are left out: no other one is in a place of theirs. A batch
        of none but these begins where the next one does.
        """
        ranked = self._ranked(begun_at_epoch)
        places = np.flatnonzero(self._have_keys(ranked))
        batches, first = np.unique(places // batch_size, return_index=True)
        digest = batch_digest_in_sql(self.membership)
        query = select(digest).where(is_one_of(RecordRow.seq, ranked[places[first]].tolist()))
        found = [*sorted(self._session.scalars(query)), _LAST]
        numbers = np.arange(-(-len(ranked) // batch_size))
        return tuple(found[place] for place in np.searchsorted(batches, numbers))

    def keep(self, session: Session) -> None:
        """Keep what was found here by hashing keys, so that it need not be done again."""
        row, names = LineageRecordsRow, {"facts", *self._hashed} if self._hashed else ()
        blocks = self._facts["seq"].astype(np.int64) // _ROWS_AT_ONCE
        key = {"model_id": self._model_id, "membership": self.membership.digest}
        for block in np.unique(blocks).tolist() if names else ():
            some = slice(*np.searchsorted(blocks, (block, block + 1)))
            packed = {name: getattr(self, f"_{name}")[some].tobytes() for name in names}
            added = insert(row).values(**key, block=block, **packed)
            session.execute(
                added.on_conflict_do_update(index_elements=[*key, "block"], set_=packed)
            )

    def keep_all(self) -> None:
        """Keep all that follows from keys, before some are destroyed, unless a run has kept it."""
        row = LineageRecordsRow
        mine = row.model_id == self._model_id, row.membership == self.membership.digest
        if not self._session.scalar(select(func.bool_and(row.ranks.is_not(None))).where(*mine)):
            _ = self._facts, self._ranks
            self.keep(self._session)

    def contradicts_kept(self) -> bool:
        """Return whether other things are kept than follow from the records' keys."""
        facts, ranks = self._kept("facts"), self._kept("ranks")
        if facts is None:
            return False
        if not np.array_equal(facts, self._hash("facts")):
            return True
        there = self._have_keys(facts["seq"])
        return ranks is not None and not (
            np.array_equal(np.sort(ranks), np.arange(len(facts)))
            and np.array_equal(np.argsort(ranks[there]), np.argsort(self._hash("ranks")[there]))
        )

    def by_member(self, members: Collection[int]) -> Mapping[int, NDArray[np.int64]]:
        """Return the numbers of the records that each of these members learns from, ascending."""
        records = self.records
        lasting = records.ended == NEVER
        order = np.argsort(records.members[lasting], kind="stable")
        seqs, owners = records.seqs[lasting][order], records.members[lasting][order]
        bounds = {each: np.searchsorted(owners, (each, each + 1)) for each in sorted(members)}
        return {each: seqs[first:last] for each, (first, last) in bounds.items()}

    @cached_property
    def _split(self) -> tuple[Facts, Facts]:
        rows, split = self._facts, self.membership
        seqs, held_out = rows["seq"].astype(np.int64), rows["is_held_out"]
        query = select(RecordRow.seq, RecordRow.forgotten_epoch).where(
            RecordRow.dataset_id == self._dataset_id,
            RecordRow.forgotten_epoch > (0 if split.is_imported else split.after_epoch),
            RecordRow.seq <= split.through,
        )
        if self._as_of is not None:
            query = query.where(RecordRow.forgotten_epoch <= self._as_of)
        gone = np.array([tuple(row) for row in self._session.execute(query)], dtype=np.int64)
        ended = np.full(len(seqs), NEVER)
        if len(gone):
            gone = gone[np.isin(gone[:, 0], seqs)]
            ended[np.searchsorted(seqs, gone[:, 0])] = gone[:, 1]
        members = rows["member"].astype(np.int16)
        learned, evaluated = (
            Facts(seqs[some], ended[some], members[some]) for some in (~held_out, held_out)
        )
        return learned, evaluated

    def _have_keys(self, seqs: NDArray[Any]) -> NDArray[np.bool_]:
        """Return of which of these records the keys are not destroyed."""
        query = select(RecordRow.seq).where(
            RecordRow.dataset_id == self._dataset_id,
            RecordRow.forgotten_epoch.is_not(None),
            RecordRow.record_key.is_(None),
        )
        return ~np.isin(seqs, self._session.scalars(query).all())

    @cached_property
    def _facts(self) -> NDArray[Any]:
        """Number, member and side of each record of the lineage, forgotten or not, by number."""
        return self._found("facts")

    @cached_property
    def _ranks(self) -> NDArray[Any]:
        """The place of each of these in the order of the digests by which batches are cut."""
        return self._found("ranks")

    def _found(self, name: str) -> NDArray[Any]:
        kept = self._kept(name)
        if kept is not None:
            return kept
        self._hashed.add(name)
        return self._hash(name)

    def _kept(self, name: str) -> NDArray[Any] | None:
        row = LineageRecordsRow
        mine = row.model_id == self._model_id, row.membership == self.membership.digest
        query = select(getattr(row, name)).where(*mine).order_by(row.block)
        found = self._session.scalars(query).all()
        return None if not found or None in found else np.frombuffer(b"".join(found), _KEPT[name])

    def _hash(self, name: str) -> NDArray[Any]:
        seq = func.int8send(RecordRow.seq)
        if name == "facts":
            is_held_out, member = self.membership.in_sql()
            member = func.int2send(member.cast(SmallInteger))
            return self._rows(_KEPT[name], seq, member, func.boolsend(is_held_out))
        rows = self._rows(_DIGESTS, seq, batch_digest_in_sql(self.membership))
        words, seqs = rows["digest"].astype(np.uint64).T, self._facts["seq"]
        there, ranks = np.isin(seqs, rows["seq"]), np.empty(len(seqs), _KEPT[name])
        order = np.lexsort((rows["seq"], *words[::-1]))
        ranks[np.flatnonzero(there)[order]] = np.arange(len(rows))
        ranks[~there] = np.arange(len(rows), len(seqs))  # their keys are destroyed
        return ranks

    def _ranked(self, begun_at_epoch: int) -> NDArray[np.int64]:
        """Return the numbers of all records that a training read, by their ranks."""
        records, ranks = self.records, self._ranks[~self._facts["is_held_out"]]
        read = records.ended > begun_at_epoch
        seqs: NDArray[np.int64] = records.seqs[read][np.argsort(ranks[read])]
        return seqs

    def _rows(self, dtype: np.dtype[Any], *fields: Any) -> NDArray[np.void]:  # noqa: ANN401
        """Return fields, as PostgreSQL sends them, of all records of the lineage, by number."""
        packed = fields[0]
        for each in fields[1:]:
            packed = packed.op("||")(each)
        query = select(func.string_agg(packed, literal(b"", LargeBinary))).where(
            RecordRow.dataset_id == self._dataset_id, self.membership.includes_in_sql()
        )
        blocks = self._session.scalars(query.group_by(RecordRow.seq // _ROWS_AT_ONCE))
        rows = np.frombuffer(b"".join(blocks), dtype=dtype)
        return rows[np.argsort(rows["seq"])]


class Newest(OrderedDict[Key, Value]):
    """Keeps the entries that were added last; they are added safely between threads."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()

    def add(self, key: Key, value: Value) -> Value:
        """Keep a value in place of the oldest; return it."""
        with self._lock:
            self[key] = value
            if len(self) > _MOST_REMEMBERED:
                self.popitem(last=False)
        return value


@dataclass(frozen=True)
class Partition:
    """Where each batch begins: the first digest of each, in order."""

    membership: Membership
    starts: tuple[bytes, ...]

    def batch_of(self, record_key: bytes | None) -> int:
        """Return the batch of a training record of the lineage, whose key is not destroyed."""
        if record_key is None:
            raise ConflictError("the record was forgotten too long ago")
        return bisect_right(self.starts, batch_digest(self.membership, record_key)) - 1


_known: Newest[Hashable, Partition] = Newest()


def partition_of(
    session: Session, model: ModelRow, *, batch_size: int, begun_at_epoch: int
) -> Partition:
    """Return the partition of the training of a model's head, which began at an epoch.

    Which batch a record is in never changes, so a process finds out once.
    """
    training = model.id, membership_of(model), batch_size, begun_at_epoch
    known = _known.get(training)
    if known is not None:
        return known
    found = TrainingSet(session, model)
    starts = found.starts(batch_size, begun_at_epoch=begun_at_epoch)
    return _known.add(training, Partition(found.membership, starts))
