"""An ensemble's run: which members it trains anew or leaves out, and who trains which.

The run's own worker takes one member after the other; other workers take some, too, if any are
free. The rows live as long as the attempt: its end deletes them, and with them goes what they
handed over. So does what was begun on records that the attempt has chosen anew since. Times are
from the database's clock.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session

from app.domain.architectures import Member, fewest_to_train, out_of
from app.domain.errors import GoneError, HeadMovedError, LeaseLostError
from app.domain.policy import Policy
from app.domain.states import Forgetting, MemberState, RunKind, RunState
from app.ledger import outbox, runs
from app.ledger.runs import holder
from app.ledger.tables import MemberTrainingRow, RunRow
from app.ledger.training import membership_of_run
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.membership import membership_of
from app.registry.tables import ModelRow, VersionRow
from app.registry.training_set import TrainingSet
from app.runtime.database import Database
from app.runtime.database.leases import in_future, prolong
from app.storage.blobs import doom_attempt

KIND: Final = "member"


def members_to_train(session: Session, model: ModelRow, run: RunRow) -> frozenset[int]:
    """Return which members of an ensemble a run trains, on what it fixed; none of other models."""
    head, count = registry.head_version(session, model), model.architecture.get("members")
    if count is None:
        return frozenset()
    if head is None or run.kind == RunKind.TRAIN:
        return frozenset(range(count))
    if run.kind == RunKind.REFILL:
        return frozenset(out_of(registry.members_of(head)))
    named = concerned(session, model, after=head.covers_epoch, through=run.forget_epoch)
    return fewest_for(model, head, named)


def fewest_for(model: ModelRow, head: VersionRow, named: frozenset[int]) -> frozenset[int]:
    """Return which members are trained to meet what was forgotten since an ensemble's head.

    That concerns the members ``named``.
    """
    members, policy = registry.members_of(head), Policy.from_json(model.policy)
    named -= out_of(members).keys()
    if policy.forget is Forgetting.RETRAIN:
        return named
    return fewest_to_train(members, named, fewest=policy.fewest(len(members)))


def records_in_run(session: Session, run: RunRow, member: int) -> NDArray[np.int64]:
    """Return those that one member learns from in a run that goes on, for another worker."""
    model = session.get_one(ModelRow, run.model_id)
    membership = membership_of_run(model, run)
    if membership is None or run.forget_epoch is None:
        raise LeaseLostError("the run is over")
    training_set = TrainingSet(session, model, membership, as_of=run.forget_epoch)
    return training_set.by_member({member})[member]


def concerned(
    session: Session, model: ModelRow, *, after: int, through: int | None
) -> frozenset[int]:
    """Return which members learn from records that were forgotten after an epoch, up to another."""
    membership = membership_of(model)
    if membership is None:
        return frozenset()
    last = math.inf if through is None else through
    return frozenset(
        membership.member_of(record)
        for record in datasets.forgotten_since(session, model.dataset_id, after)
        if membership.touched_by(record) and (record.forgotten_epoch or 0) <= last
    )


@dataclass(frozen=True)
class Joined:
    """What becomes of an ensemble's members if a run publishes now.

    Attributes:
        head_id: the version that it goes on from; None for a training.
        number: of the version that it makes.
        before: the members of that head.
        trained: which members are those that the run trained.
        kept: which are the head's; all others are out.
    """

    head_id: str | None
    number: int
    before: Sequence[Member]
    trained: frozenset[int]
    kept: frozenset[int]

    @property
    def out(self) -> dict[int, int]:
        """Which members are out, each with the first version without it."""
        gone = set(range(len(self.before))) - self.trained - self.kept
        since = out_of(self.before)
        return {member: since.get(member, self.number) for member in sorted(gone)}


def join(
    session: Session,
    model: ModelRow,
    run: RunRow,
    trained: Collection[int],
    *,
    number: int | None = None,
    gone: frozenset[int] | None = None,
) -> Joined:
    """Return what becomes of the members, of which the run has ``trained`` some.

    ``number`` is the next version's, and ``gone`` are the members concerned by what the run
    answers, where the caller has read that.

    What a run has learned from records that were forgotten since it began stays out of a refill, as
    whatever joined meanwhile stays in; other runs answer what they began with, and leave the
    members concerned out unless they trained them.
    """
    head = registry.head_version(session, model)
    number = number or registry.next_number(session, model.id)
    made = frozenset(trained)
    if run.kind == RunKind.TRAIN:
        return Joined(None, number, [], made, frozenset())
    if head is None:
        raise LeaseLostError("the run is over: its model has no weights any more")
    before = registry.members_of(head)
    active = frozenset(range(len(before))) - out_of(before).keys()
    if run.kind == RunKind.REFILL:
        gone = concerned(session, model, after=run.forget_epoch or 0, through=None)
        return Joined(head.id, number, before, made - active - gone, active)
    if gone is None:
        gone = concerned(session, model, after=head.covers_epoch, through=run.forget_epoch)
    return Joined(head.id, number, before, made, active - made - gone)


def is_in_vain(session: Session, run_id: str, member: int) -> bool:
    """Return whether a refill will not publish a member, as records of it were forgotten since.

    Their requests may be completed: nothing of them is read, or written, any more.
    """
    run = session.get_one(RunRow, run_id)
    if run.kind != RunKind.REFILL:
        return False
    model = session.get_one(ModelRow, run.model_id)
    return member in concerned(session, model, after=run.forget_epoch or 0, through=None)


@contextmanager
def read_as_head(database: Database, version: VersionRow) -> Iterator[None]:
    """Raise ``HeadMovedError`` where a head's file is gone, as another run has replaced it."""
    try:
        yield
    except GoneError as error:
        with database.transaction() as session:
            if session.get_one(ModelRow, version.model_id).head_version_id == version.id:
                raise
        raise HeadMovedError("another version was published meanwhile") from error


@dataclass(frozen=True)
class HeldMember:
    """A member under its fencing token, in one attempt at a run."""

    run_id: str
    run_token: int
    member: int
    fencing_token: int

    @classmethod
    def of(cls, row: MemberTrainingRow) -> Self:
        """Return what a worker that has leased a row holds."""
        return cls(row.run_id, row.run_token, row.member, row.fencing_token)


def begin(session: Session, run_id: str, fencing_token: int, members: Collection[int]) -> None:
    """Note which members an attempt has to train, and ask other workers for help with several.

    An attempt may begin again, on fewer records. Its tokens go on, so that what a worker holds from
    before is not taken for what another one holds now.
    """
    holder(session, run_id, fencing_token)
    mine = MemberTrainingRow.run_id == run_id
    before = session.scalars(
        delete(MemberTrainingRow).where(mine).returning(MemberTrainingRow.fencing_token)
    ).all()
    session.add_all(
        MemberTrainingRow(
            run_id=run_id,
            run_token=fencing_token,
            member=member,
            state=MemberState.WAITING,
            fencing_token=max(before, default=0),
        )
        for member in members
    )
    if len(members) > 1:
        outbox.post(session, outbox.Topic.ENQUEUE_MEMBERS, run_id)


def end_choice(session: Session, run_id: str) -> None:
    """Take all members from their workers, with what these handed over: the run chooses anew.

    The run's row is locked. A request for what was chosen before may be certified by its commit.
    """
    session.execute(
        update(MemberTrainingRow)
        .where(MemberTrainingRow.run_id == run_id)
        .values(
            state=MemberState.DONE,
            blob_id=None,
            lease_expires_at=None,
            fencing_token=MemberTrainingRow.fencing_token + 1,
        )
    )
    doom_attempt(session, run_id)


def reserve_blob(session: Session, held: HeldMember) -> str:
    """Return the id of the blob for what is handed over.

    Raises:
        GoneError: it is trained in vain.
        LeaseLostError: it is not held.
    """
    blob_id = runs.reserve_blob(session, held.run_id, held.run_token, kind=KIND)
    going = MemberTrainingRow.state == MemberState.LEASED
    if session.scalar(select(MemberTrainingRow.member).where(*_is(held), going)) is None:
        raise LeaseLostError("the member is trained by another worker")
    if is_in_vain(session, held.run_id, held.member):
        raise GoneError("records that the member has learned from were forgotten meanwhile")
    return blob_id


def take(session: Session, run_id: str, *, lease_s: float | None) -> MemberTrainingRow | None:
    """Lease the next member of a run that goes on; None if none waits.

    One that would be trained in vain is done. Without ``lease_s`` it is the run's own worker, who
    holds it for as long as the run. What that one holds when it asks for more was given by a commit
    whose answer was lost.
    """
    expired = MemberTrainingRow.lease_expires_at <= func.clock_timestamp()
    if lease_s is None:
        expired = or_(expired, MemberTrainingRow.lease_expires_at.is_(None))
    query = (
        select(MemberTrainingRow)
        .join(RunRow, RunRow.id == MemberTrainingRow.run_id)
        .where(
            MemberTrainingRow.run_id == run_id,
            RunRow.state == RunState.RUNNING,
            RunRow.fencing_token == MemberTrainingRow.run_token,
            or_(
                MemberTrainingRow.state == MemberState.WAITING,
                and_(MemberTrainingRow.state == MemberState.LEASED, expired),
            ),
        )
        .order_by(MemberTrainingRow.member)
        .limit(1)
        .with_for_update(of=MemberTrainingRow, skip_locked=True)
    )
    while (row := session.scalar(query)) and is_in_vain(session, run_id, row.member):
        row.state, row.lease_expires_at = MemberState.DONE, None
        session.flush()
    if row is None:
        return None
    row.state = MemberState.LEASED
    row.fencing_token += 1
    row.lease_expires_at = None if lease_s is None else in_future(lease_s)
    session.flush()
    return row


def waiting(session: Session, run_id: str) -> int:
    """Return how many members of a run wait for a worker."""
    query = select(func.count()).where(
        MemberTrainingRow.run_id == run_id, MemberTrainingRow.state == MemberState.WAITING
    )
    return session.scalar(query) or 0


def heartbeat(connection: Session | Connection, held: HeldMember, *, lease_s: float) -> None:
    """Prolong a lease; ``LeaseLostError`` if it is not held any more."""
    going = MemberTrainingRow.state == MemberState.LEASED
    prolong(connection, MemberTrainingRow, *_is(held), going, lease_s=lease_s, what="member")


def finish(session: Session, held: HeldMember, blob_id: str | None) -> None:
    """Note that a member was trained; its tensors are in the blob, or with the run's own worker.

    Safe to repeat.
    """
    holder(session, held.run_id, held.run_token)
    done = (
        update(MemberTrainingRow)
        .where(*_is(held), MemberTrainingRow.state != MemberState.WAITING)
        .values(state=MemberState.DONE, blob_id=blob_id, lease_expires_at=None)
        .returning(MemberTrainingRow.member)
    )
    if session.execute(done).scalar() is None:
        raise LeaseLostError("the member is trained by another worker")


def give_back(session: Session, held: HeldMember) -> None:
    """Let another worker train a member, if it is still held."""
    session.execute(
        update(MemberTrainingRow)
        .where(*_is(held), MemberTrainingRow.state == MemberState.LEASED)
        .values(state=MemberState.WAITING, lease_expires_at=None)
    )


def all_of(session: Session, run_id: str) -> Sequence[MemberTrainingRow]:
    """Return the members of a run, in order."""
    query = select(MemberTrainingRow).where(MemberTrainingRow.run_id == run_id)
    return session.scalars(query.order_by(MemberTrainingRow.member)).all()


def _is(held: HeldMember) -> tuple[ColumnElement[bool], ...]:
    return (
        MemberTrainingRow.run_id == held.run_id,
        MemberTrainingRow.run_token == held.run_token,
        MemberTrainingRow.member == held.member,
        MemberTrainingRow.fencing_token == held.fencing_token,
    )
