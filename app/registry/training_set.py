"""The records of a lineage as arrays: PostgreSQL hashes their keys, and says what follows."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, LargeBinary, SmallInteger, func, literal, select
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import RecordRow
from app.registry.membership import Membership, batch_digest_in_sql, membership_of
from app.registry.tables import ModelRow

NEVER: Final = np.iinfo(np.int64).max
"""The epoch of a record that is not forgotten."""
_ROWS_AT_ONCE: Final = 2**20
_FACTS: Final = np.dtype(
    [("seq", ">i8"), ("ended", ">i8"), ("member", ">i2"), ("is_held_out", "?")]
)
_DIGESTS: Final = np.dtype([("seq", ">i8"), ("digest", ">u8", 4)])


class TrainingRecord(NamedTuple):
    """A record that a lineage is trained on, and that was forgotten.

    ``member`` is which member of an ensemble learns from it.
    """

    seq: int
    key: bytes
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
        self._dataset_id = model.dataset_id
        self._as_of = math.inf if as_of is None else as_of

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
        ranked = self._ranked(begun_at_epoch)["seq"].astype(np.int64)
        order = np.argsort(ranked)
        return ranked[order], order // batch_size

    def starts(self, batch_size: int, *, begun_at_epoch: int) -> tuple[bytes, ...]:
        """Return where each batch begins: the first digest of each, in order."""
        first = self._ranked(begun_at_epoch)["digest"][::batch_size]
        return tuple(digest.tobytes() for digest in first)

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
        is_held_out, member = self.membership.in_sql()
        ended = func.coalesce(RecordRow.forgotten_epoch, literal(NEVER, BigInteger))
        rows = self._rows(
            _FACTS,
            func.int8send(RecordRow.seq),
            func.int8send(ended),
            func.int2send(member.cast(SmallInteger)),
            func.boolsend(is_held_out),
        )
        seqs, found = rows["seq"].astype(np.int64), rows["ended"].astype(np.int64)
        if self._as_of != math.inf:
            found[found > self._as_of] = NEVER
        members, held_out = rows["member"].astype(np.int16), rows["is_held_out"]
        learned, evaluated = (
            Facts(seqs[some], found[some], members[some]) for some in (~held_out, held_out)
        )
        return learned, evaluated

    @cached_property
    def _digests(self) -> NDArray[np.void]:
        digest = batch_digest_in_sql(self.membership)
        return self._rows(_DIGESTS, func.int8send(RecordRow.seq), digest)

    def _ranked(self, begun_at_epoch: int) -> NDArray[np.void]:
        """Return number and digest of all records that a training read, by their digests."""
        records, rows = self.records, self._digests
        read = records.seqs[records.ended > begun_at_epoch]
        rows = rows[np.searchsorted(rows["seq"].astype(np.int64), read)]
        words = rows["digest"].astype(np.uint64).T
        return rows[np.lexsort((rows["seq"], *words[::-1]))]

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
