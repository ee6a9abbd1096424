"""An ensemble's run: which members it trains anew, who trains which, and where the result waits.

The run's own worker takes one member after the other; other workers take some, too, if any are
free. The rows live as long as the attempt: its end deletes them, and with them goes what they
handed over. So does what was begun on records that the attempt has chosen anew since. Times are
from the database's clock.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session

from app.domain.errors import LeaseLostError
from app.domain.states import MemberState, RunKind, RunState
from app.ledger import outbox, runs
from app.ledger.runs import holder
from app.ledger.tables import MemberTrainingRow, RunRow
from app.ledger.training import membership_of_run
from app.registry import repository as registry
from app.registry.tables import ModelRow
from app.registry.training_set import TrainingSet
from app.runtime.database.leases import in_future, prolong
from app.storage.blobs import doom_attempt

KIND: Final = "member"


def members_to_train(
    session: Session, model: ModelRow, training_set: TrainingSet, *, anew: bool
) -> Mapping[int, NDArray[np.int64]]:
    """Return the records of each member of an ensemble that a run trains; none for other models.

    A training trains all of them. Any other run trains those with a record that was forgotten since
    the version before.
    """
    count, head = training_set.membership.members, registry.head_version(session, model)
    if count is None:
        return {}
    concerned: Collection[int] = range(count)
    if not anew and head is not None:
        concerned = {each.member for each in training_set.forgotten_after(head.covers_epoch)}
    return training_set.by_member(concerned)


def members_of_run(session: Session, run: RunRow) -> Mapping[int, NDArray[np.int64]]:
    """Return the same of a run that goes on, for another worker."""
    model = session.get_one(ModelRow, run.model_id)
    membership = membership_of_run(model, run)
    if membership is None or run.forget_epoch is None:
        raise LeaseLostError("the run is over")
    training_set = TrainingSet(session, model, membership, as_of=run.forget_epoch)
    return members_to_train(session, model, training_set, anew=run.kind == RunKind.TRAIN)


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
    """Return the id of the blob for what is handed over; ``LeaseLostError`` if it is not held."""
    blob_id = runs.reserve_blob(session, held.run_id, held.run_token, kind=KIND)
    going = MemberTrainingRow.state == MemberState.LEASED
    if session.scalar(select(MemberTrainingRow.member).where(*_is(held), going)) is None:
        raise LeaseLostError("the member is trained by another worker")
    return blob_id


def take(session: Session, run_id: str, *, lease_s: float | None) -> MemberTrainingRow | None:
    """Lease the next member of a run that goes on; None if none waits.

    Without ``lease_s`` it is the run's own worker, who holds it for as long as the run. What that
    one holds when it asks for more was given by a commit whose answer was lost.
    """
    expired = MemberTrainingRow.lease_expires_at <= func.clock_timestamp()
    if lease_s is None:
        expired = or_(expired, MemberTrainingRow.lease_expires_at.is_(None))
    row = session.scalar(
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
