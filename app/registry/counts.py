"""How many records a model's lineage has: kept beside it, so that no plan counts them.

A lineage's records are fixed when it begins, and later pushes join none that is there already. So
its counts are made once, and change with what forget requests name. Who begins or ends a lineage,
or marks its records as forgotten, changes them in the same transaction, under the model's lock.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Integer,
    String,
    and_,
    delete,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.orm import Session

from app.registry.datasets import repository as datasets
from app.registry.datasets.repository import KeyedRecord
from app.registry.datasets.tables import RecordRow
from app.registry.membership import Membership, Numbered, membership_of
from app.registry.tables import LineageRecordsRow, ModelCountRow, ModelRow
from app.registry.training_set import TrainingRecord, partition_of

_NEXT_EPOCH = 2**63


class Counts(NamedTuple):
    """The counts of one member's records, as ``ModelCountRow`` keeps them."""

    member: int
    records: int = 0
    read: int = 0
    retained: int = 0
    held_out_records: int = 0
    held_out: int = 0


def counted(
    session: Session, dataset_id: str, membership: Membership, *, begun_at_epoch: int = 0
) -> list[Counts]:
    """Count a lineage's records, all of them, as they are now.

    ``begun_at_epoch`` is when the training of its weights began, if it is tracked.
    """
    is_held_out, member = membership.in_sql()
    included = (
        select(RecordRow.forgotten_epoch, is_held_out.label("is_held_out"), member.label("member"))
        .where(RecordRow.dataset_id == dataset_id, membership.includes_in_sql())
        .subquery()
    )
    held_out, ended = included.c.is_held_out, included.c.forgotten_epoch
    learned, lasting = not_(held_out), ended.is_(None)
    sides = (
        learned,
        and_(learned, or_(lasting, ended > begun_at_epoch)),
        and_(learned, lasting),
        held_out,
        and_(held_out, lasting),
    )
    numbers = (func.count().filter(side) for side in sides)
    query = select(included.c.member, *numbers).group_by(included.c.member)
    return [Counts(*row) for row in session.execute(query.order_by(included.c.member))]


def begin(session: Session, model: ModelRow, counts: Iterable[Counts], *, as_of: int) -> None:
    """Keep the counts of a lineage, which begins, in place of those of the one before.

    They were made at the epoch ``as_of``: what was forgotten since is taken off.
    """
    end(session, model)
    rows = [{"model_id": model.id, **each._asdict()} for each in counts]
    if rows:
        session.execute(insert(ModelCountRow), rows)
    membership = membership_of(model)
    if membership is not None:
        since = datasets.forgotten_since(session, model.dataset_id, as_of)
        forget(session, [(model.id, membership)], since)


def end(session: Session, model: ModelRow) -> None:
    """Keep none, and nothing of the records of another lineage than the model now has."""
    row, membership = LineageRecordsRow, membership_of(model)
    session.execute(delete(ModelCountRow).where(ModelCountRow.model_id == model.id))
    others = true() if membership is None else row.membership != membership.digest
    session.execute(delete(row).where(row.model_id == model.id, others))


def note_read(session: Session, model: ModelRow, *, begun_at_epoch: int, run_epoch: int) -> None:
    """Count the records that the training of a version's weights read.

    ``begun_at_epoch`` is where it is tracked from, 0 where it is not; ``run_epoch`` what the run
    left out that made the version.
    """
    row = ModelCountRow
    mine = update(row).where(row.model_id == model.id)
    if begun_at_epoch == 0:
        session.execute(mine.values(read=row.records))
    elif begun_at_epoch == run_epoch:
        session.execute(mine.values(read=row.retained))
        since = Lineage(session, model).forgotten_after(run_epoch)
        for member, count in Counter(record.member for record in since).items():
            session.execute(mine.where(row.member == member).values(read=row.read + count))


def forget(
    session: Session, lineages: Iterable[tuple[str, Membership]], records: Sequence[Numbered]
) -> None:
    """Count records as forgotten that were not, in the lineages of some models, by their ids."""
    gone: Counter[tuple[str, int, bool]] = Counter()
    for model_id, membership in lineages:
        for record in records:
            if membership.includes(record):
                member = membership.member_of(record)
                gone[model_id, member, membership.is_held_out(record)] += 1
    if not gone:
        return
    places = sorted({key[:2] for key in gone})
    columns = (
        literal([model_id for model_id, _ in places], ARRAY(String)),
        literal([member for _, member in places], ARRAY(Integer)),
        *(
            literal([gone[(*place, is_held_out)] for place in places], ARRAY(BigInteger))
            for is_held_out in (False, True)
        ),
    )
    names = ("model_id", "member", "retained", "held_out")
    less = func.unnest(*columns).table_valued(*names, name="less").render_derived()
    row = ModelCountRow
    session.execute(
        update(row)
        .where(row.model_id == less.c.model_id, row.member == less.c.member)
        .values(retained=row.retained - less.c.retained, held_out=row.held_out - less.c.held_out)
        .execution_options(synchronize_session=False)
    )


def is_emptied(session: Session, model: ModelRow) -> bool:
    """Return whether records were forgotten and none is left to learn from; that stays so.

    No model is withdrawn for a number that is kept: where it says so, they are counted.
    """
    membership = membership_of(model)
    if membership is None or total(session, model).retained > 0:
        return False
    found = added(counted(session, model.dataset_id, membership))
    gone = found.records - found.retained
    if membership.learns_from_held_out:
        gone += found.held_out_records - found.held_out
    return found.retained == 0 and gone > 0


def added(counts: Iterable[Counts]) -> Counts:
    """Return the counts of all members together."""
    return Counts(*map(sum, zip((0,) * len(Counts._fields), *counts, strict=True)))


def total(session: Session, model: ModelRow) -> Counts:
    """Return the counts of a model's lineage, all members together."""
    row = ModelCountRow
    sums = (func.coalesce(func.sum(getattr(row, name)), 0) for name in Counts._fields[1:])
    found = session.execute(select(*sums).where(row.model_id == model.id)).one()
    return Counts(0, *map(int, found))


class Lineage:
    """The records of a model's lineage as planning asks for them, from what is kept.

    Records numbered in ``forgetting`` count as forgotten last of all, as if a request had named
    them. ``counts`` are of a lineage of which none are kept yet.
    """

    def __init__(
        self,
        session: Session,
        model: ModelRow,
        *,
        forgetting: Collection[int] = (),
        counts: Iterable[Counts] | None = None,
    ) -> None:
        self._session = session
        self._model = model
        self._forgetting = forgetting
        self._total = total(session, model) if counts is None else added(counts)

    @classmethod
    def of(cls, session: Session, model: ModelRow) -> "Lineage | None":
        """Return a model's, if it has one."""
        return None if membership_of(model) is None else cls(session, model)

    @property
    def retained(self) -> int:
        """How many records there are to learn from."""
        return self._total.retained - len(self._named)

    def read(self, _begun_at_epoch: int) -> int:
        """Return how many the training of the present weights read."""
        return self._total.read

    def forgotten_after(self, epoch: int) -> list[TrainingRecord]:
        """Return those to learn from that were forgotten after an epoch."""
        found = datasets.forgotten_since(self._session, self._model.dataset_id, epoch)
        return [*self._learned(found), *self._named]

    def by_batch(
        self, records: Iterable[TrainingRecord], batch_size: int, *, begun_at_epoch: int
    ) -> Counter[int]:
        """Count records by the fixed batch of the training that read them."""
        partition = partition_of(
            self._session, self._model, batch_size=batch_size, begun_at_epoch=begun_at_epoch
        )
        return Counter(partition.batch_of(record.key) for record in records)

    @cached_property
    def _named(self) -> list[TrainingRecord]:
        if not self._forgetting:
            return []
        found = datasets.records_numbered(self._session, self._forgetting)
        left = [record for record in found if record.forgotten_epoch is None]
        return [each._replace(forgotten_epoch=_NEXT_EPOCH) for each in self._learned(left)]

    def _learned(self, records: Iterable[KeyedRecord]) -> list[TrainingRecord]:
        membership = membership_of(self._model)
        return [
            TrainingRecord(
                record.seq,
                record.record_key,
                record.forgotten_epoch,
                membership.member_of(record),
            )
            for record in records
            if membership is not None
            and membership.includes(record)
            and not membership.is_held_out(record)
        ]
